# Sourced by the scripts beside it: messages, packages of the system, packages of Python.

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
tools=$root/target/tools

say() { printf '%s: %s\n' "$(basename "$0")" "$*" >&2; }

# die MESSAGE...: one argument a line.
die() {
    printf '%s: error: %s\n' "$(basename "$0")" "$1" >&2
    shift
    [ $# -eq 0 ] || printf '    %s\n' "$@" >&2
    exit 1
}

has() { command -v "$1" >/dev/null 2>&1; }

# distribution: the name that this system gives itself, for messages.
distribution() (. /etc/os-release 2>/dev/null && echo "${PRETTY_NAME:-this system}" || echo "this system")

# apt ARGUMENTS: apt-get as root, asking nothing and waiting for another one to finish.
apt() {
    $(as_root) env DEBIAN_FRONTEND=noninteractive apt-get -qq -o DPkg::Lock::Timeout=300 "$@"
}

as_root() { [ "$(id -u)" -eq 0 ] || echo sudo; }

# apt_missing PACKAGE...: those of them that are not installed.
apt_missing() {
    local package
    for package; do
        [[ $(dpkg-query -W -f '${Status}' "$package" 2>/dev/null) == *' installed' ]] || echo "$package"
    done
}

# apt_known PACKAGE: whether the archives that apt knows have it.
apt_known() { [[ $(apt-cache policy "$1" 2>/dev/null) == *'Candidate: '[!\(]* ]]; }

# apt_install PACKAGE...: installs what is missing; fails with a sentence where it cannot.
apt_install() {
    local package wanted log
    wanted=$(apt_missing "$@" | xargs)
    [ -n "$wanted" ] || return 0
    has apt-get || die "missing: $wanted" "$(distribution) has no apt-get: install their counterparts by hand"
    [ "$(id -u)" -eq 0 ] || has sudo ||
        die "missing: $wanted" "installing them needs root, and there is no sudo: apt-get install $wanted"
    log=$(mktemp)
    say "installing $wanted"
    # The lists may be absent or old on a new machine; stale ones are no reason to stop here.
    apt update >"$log" 2>&1 || { tail -n 5 "$log" >&2; say "apt-get update failed, going on with the old lists"; }
    for package in $wanted; do
        apt_known "$package" || unavailable "$package"
    done
    # shellcheck disable=SC2086 — a list of names without spaces
    apt install --no-install-recommends $wanted >"$log" 2>&1 || {
        tail -n 20 "$log" >&2
        die "apt-get could not install $wanted (its last lines are above)"
    }
    rm -f "$log"
}

unavailable() {
    case $1 in
    *llvm* | *polly*)
        . /etc/os-release
        die "$(distribution) has no package $1 in the archives that apt knows" \
            "Flux compiles kernels with LLVM 22. Debian 12 and later carry it (also enable the security" \
            "archive on Debian 12). Elsewhere add the LLVM project's own archive, as https://apt.llvm.org tells:" \
            "    deb https://apt.llvm.org/${VERSION_CODENAME:-CODENAME}/ llvm-toolchain-${VERSION_CODENAME:-CODENAME}-22 main" \
            "and run this again. An LLVM 22 of your own serves as well: put its llvm-config-22 on PATH, or set" \
            "LLVM_SYS_221_PREFIX to its folder. Without LLVM, kernels still check and run on the host:" \
            "    cargo run --no-default-features --example tp_mlp -- --world host:4"
        ;;
    *) die "$(distribution) has no package $1 in the archives that apt knows" ;;
    esac
}

# pip_into FOLDER PACKAGE...: exactly these packages, without what they depend on, under FOLDER.
# A folder of its own works with every Python, the ones managed by the system included.
pip_into() {
    local folder=$1 python
    shift
    python=$(python_with_pip) || { apt_install python3-pip && python=$(python_with_pip); } ||
        die "no Python 3 with pip was found, and it brings $*"
    say "fetching $*"
    PIP_ROOT_USER_ACTION=ignore "$python" -m pip install --quiet --disable-pip-version-check \
        --no-deps --no-compile --upgrade --target "$folder" "$@" ||
        die "pip could not install $*" "the command was: $python -m pip install --no-deps --target $folder $*"
}

python_with_pip() {
    local python
    for python in python3 /usr/bin/python3; do
        "$python" -m pip --version >/dev/null 2>&1 && echo "$python" && return 0
    done
    return 1
}
