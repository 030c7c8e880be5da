test:
	cargo test -p flux-ir
