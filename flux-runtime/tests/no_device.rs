//! Without a driver or a device, every entry point says so and none panics.
//!
//! On a machine with a device, what these tests are about cannot be seen, and they say that.

use flux_runtime::blas::{Blas, Gemm};
use flux_runtime::network::{Nccl, OLDEST_NCCL};
use flux_runtime::{
    Device, DeviceBuffer, Error, Event, Function, Heaps, HostBuffer, Module, Rendezvous, Stream,
    TensorMap, probe,
};
use std::path::Path;
use std::process::Command;

/// An error that means: there is no device to work with.
fn says_no_device(error: &Error) -> bool {
    matches!(
        error,
        Error::NoDriver
            | Error::NoDevice
            | Error::DriverTooOld { .. }
            | Error::DriverIncomplete { .. }
            | Error::DriverStart { .. }
    )
}

#[test]
fn probing_gives_the_same_answer_each_time_and_on_each_thread() {
    let first = probe();
    let others: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4).map(|_| scope.spawn(probe)).collect();
        threads.into_iter().map(|thread| thread.join().expect("probing panicked")).collect()
    });
    assert!(others.iter().all(|other| *other == first));
    match first {
        Ok(info) => {
            assert!(info.devices > 0 && info.connections > 0);
            println!("skipped: a CUDA device is present, so there is no error to see");
        }
        Err(error) => assert!(says_no_device(&error), "{error}"),
    }
}

#[test]
fn everything_may_be_shared_between_threads() {
    fn shared<T: Send + Sync>() {}
    shared::<(Device, DeviceBuffer, HostBuffer, Heaps)>();
    shared::<(Stream, Event, Module, Function, TensorMap)>();
    shared::<(Blas, Gemm, Rendezvous, Error)>();
}

#[test]
fn opening_a_device_gives_the_probes_error() {
    match probe() {
        Ok(info) => {
            let (ordinal, count) = (info.devices, info.devices);
            let error = Device::open(ordinal).unwrap_err();
            assert_eq!(error, Error::NoSuchDevice { ordinal, count });
        }
        Err(error) => {
            for ordinal in [0, 1, u32::MAX] {
                assert_eq!(Device::open(ordinal).unwrap_err(), error);
            }
        }
    }
}

#[test]
fn a_machine_without_the_library_has_no_driver() {
    let system = ["/lib", "/usr/lib", "/usr/lib64", "/usr/local/cuda", "/usr/local/nvidia"];
    let named = std::env::var("LD_LIBRARY_PATH").unwrap_or_default();
    let installed = system.iter().any(|folder| has_library(Path::new(folder), 3))
        || named.split(':').any(|folder| has_library(Path::new(folder), 0));
    if installed {
        println!("skipped: libcuda is installed");
        return;
    }
    assert_eq!(probe(), Err(Error::NoDriver));
    let said = "no CUDA driver: libcuda cannot be loaded, or is a stub without a driver behind it";
    assert_eq!(Error::NoDriver.to_string(), said);
}

/// Is there a file called libcuda.so… within `depth` levels of `folder`?
fn has_library(folder: &Path, depth: u32) -> bool {
    let Ok(entries) = folder.read_dir() else { return false };
    entries.flatten().any(|entry| {
        let name = entry.file_name();
        name.to_string_lossy().starts_with("libcuda.so")
            || depth > 0 && entry.path().is_dir() && has_library(&entry.path(), depth - 1)
    })
}

/// A library in the driver's place, and what [`probe`] must say of it.
struct FalseDriver {
    name: &'static str,
    source: fn() -> String,
    says: &'static str,
}

const FALSE_DRIVERS: [FalseDriver; 4] = [
    FalseDriver {
        name: "empty",
        source: || "int flux_false_driver = 1;\n".into(),
        says: "the CUDA driver library lacks cuInit, ",
    },
    FalseDriver {
        name: "old",
        source: || {
            "int cuDriverGetVersion(int *version) { *version = 11080; return 0; }\n\
             int cuGetErrorString(int code, const char **text) { return 1; }\n"
                .into()
        },
        says: "a CUDA driver of version 12.3 or later is needed, this one is 11.8",
    },
    FalseDriver {
        name: "stub",
        source: || complete("return 34;"),
        says: "no CUDA driver: libcuda cannot be loaded, or is a stub without a driver behind it",
    },
    // 100 is CUDA_ERROR_NO_DEVICE, which this driver gives only when its queues have been set
    // before it starts, and only then does the process say so.
    FalseDriver {
        name: "without_devices",
        source: || {
            complete(
                "const char *queues = getenv(\"CUDA_DEVICE_MAX_CONNECTIONS\");\n\
                 const char *loading = getenv(\"CUDA_MODULE_LOADING\");\n\
                 if (!queues || strcmp(queues, \"32\")) return 999;\n\
                 return loading && !strcmp(loading, \"EAGER\") ? 100 : 999;",
            )
        },
        says: "the CUDA driver sees no device",
    },
];

/// A library with every function that the runtime calls, whose `cuInit` has the body `init`.
fn complete(init: &str) -> String {
    let mut source = format!(
        "#include <stdlib.h>\n#include <string.h>\n\
         int cuInit(unsigned flags) {{ {init} }}\n\
         int cuDriverGetVersion(int *version) {{ *version = 13000; return 0; }}\n\
         int cuDeviceGetCount(int *count) {{ return 3; }}\n\
         int cuGetErrorString(int code, const char **text) {{ return 1; }}\n"
    );
    // The names in quotes are those that the runtime looks for.
    let names = include_str!("../src/driver.rs").split('"').filter(|name| {
        name.len() > 2
            && name.starts_with("cu")
            && name.chars().all(|c| c.is_alphanumeric() || c == '_')
    });
    let mut seen = vec!["cuInit", "cuDriverGetVersion", "cuDeviceGetCount", "cuGetErrorString"];
    for name in names {
        if !seen.contains(&name) {
            seen.push(name);
            source.push_str(&format!("int {name}(void) {{ return 999; }}\n"));
        }
    }
    source
}

/// The name of the test below, by which it calls itself in other processes.
const CHILD: &str = "a_library_that_is_no_driver_is_an_error_and_no_panic";

#[test]
fn a_library_that_is_no_driver_is_an_error_and_no_panic() {
    if std::env::var_os("FLUX_TEST_FALSE_DRIVER").is_some() {
        let error = probe().expect_err("a false driver was taken for a true one");
        assert_eq!(Device::open(0).unwrap_err(), error);
        println!("probe said: {error}");
        return;
    }
    for FalseDriver { name, source, says } in FALSE_DRIVERS {
        let folder = std::env::temp_dir().join(format!("flux-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let (library, text) = (folder.join("libcuda.so"), folder.join("driver.c"));
        std::fs::write(&text, source()).unwrap();
        let built = Command::new("cc")
            .args(["-w", "-shared", "-fPIC", "-o"])
            .args([&library, &text])
            .status()
            .is_ok_and(|status| status.success());
        if built {
            let output = Command::new(std::env::current_exe().unwrap())
                .args(["--exact", CHILD, "--nocapture"])
                .env("FLUX_TEST_FALSE_DRIVER", "1")
                .env("LD_LIBRARY_PATH", &folder)
                .env_remove("CUDA_DEVICE_MAX_CONNECTIONS")
                .env_remove("CUDA_MODULE_LOADING")
                .output()
                .unwrap();
            let said = String::from_utf8_lossy(&output.stdout);
            let failed = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{name}: {said}{failed}");
            assert!(said.contains(&format!("probe said: {says}")), "{name}: {said}");
        } else {
            println!("skipped: no C compiler to make the driver `{name}` with");
        }
        std::fs::remove_dir_all(&folder).unwrap();
    }
}

/// NCCL is there and new enough, or what is missing is said with what to do.
#[test]
fn a_network_without_its_library_is_an_error() {
    match Nccl::open() {
        Ok(nccl) => assert!(nccl.version() >= OLDEST_NCCL, "{nccl:?}"),
        Err(error) => {
            let said = error.to_string();
            assert!(said.contains("FLUX_NCCL") && said.contains("nvidia-nccl-cu13"), "{said}");
        }
    }
}
