//! One mistake a file, named by the mistake, with what is said about it; `pass` holds what has
//! to be accepted. `TRYBUILD=overwrite` rewrites the expectations.

#[test]
fn mistakes_are_reported_at_their_token() {
    let cases = trybuild::TestCases::new();
    cases.compile_fail("tests/ui/*.rs");
    cases.pass("tests/ui/pass/*.rs");
}
