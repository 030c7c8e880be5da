//! One mistake a file, named by the mistake, with what is said about it.
//! `TRYBUILD=overwrite` rewrites the expectations. What has to be accepted is in `language.rs`.

#[test]
fn mistakes_are_reported_at_their_token() {
    trybuild::TestCases::new().compile_fail("tests/ui/*.rs");
}
