//! The text form of Kernel and Program: written by [`Display`](std::fmt::Display), read by
//! [`FromStr`](std::str::FromStr), and `parse(print(x)) == x`.
//!
//! White space separates tokens, `;` begins a comment that ends with the line. A trailing
//! `@line:column` is the span of what stands before it; it is left out where unknown. A name is
//! a Rust identifier, or any text in double quotes (`%"odd name"`). A `%` directly followed by a
//! name or a digit begins a name; any other `%` is the remainder.
//!
//! ```text
//! kernel   = "kernel" @name "(" [param {"," param}] ")" "{" span [protocol]
//!              "for" "tile" "in" %param ["slices" expr] "{" span { op span } "}" "}"
//! protocol = "protocol" "{" ["vars" %name {"," %name}] { buffer | signals | agent } "}"
//! param    = %name ":" ("f32" | "&" ["mut"] distribution "<" element ">") span
//! op       = ("store" | "keep") %param "," %7  |  %7 "=" yields
//! yields   = "await" %signal "[" expr [".." expr] "]" ["times" expr] | "ready" %buffer "after" %7
//!          | "wait" %param | "gemm" (%param | %7) "," %param [".t"]
//!          | ("cols" | "rows" | "load" | "scalar") %param | "const" float
//!          | unary %7 | binary %7 "," %7 | "cast" %7 "to" element | "reduce" %param "," %7
//!
//! program  = "program" @name "for" target "{"
//!              "tile" "(" int "," int "," int ")" "stages" int "consumers" form
//!              ["vars" %name {"," %name}]
//!              { let | buffer | scalar | signals | table | value | agent } "}"
//! let      = "let" %name "=" expr
//! buffer   = "buffer" %name ":" element ["[" exprs "]"] "[" expr "," expr "]"
//!              ("in" | "out" | "symmetric") ["first_row" expr] span
//! scalar   = "scalar" %name
//! signals  = "signal" %name "[" expr "]" ("device" | "host")
//! table    = "table" %name "[" expr "]" "order" order "(" %m "," %n ")" "->" "(" expr "," expr ")"
//! order    = built-in name | "grouped" "(" int ")" | "custom" "(" name ")"
//! value    = %e7 "=" ("acc" int | "sum" | "const" float | "scalar" %name
//!              | ("cols" | "rows" | "load") %buffer | unary %e7 | binary %e7 "," %e7
//!              | "cast" %e7 "to" element) span
//! agent    = "agent" name "on" engine body ["exit" body]
//! body     = "{" { stmt } "}"
//! stmt     = "for" %name "in" range ["step" expr] "{" span { stmt } "}"
//!          | "if" expr ("==" | "!=" | "<") expr "{" span { stmt } "}"
//!          | simple span
//! simple   = let
//!          | "row" "(" %m "," %n "," %name "," %name ")" "=" %table "[" expr "]"
//!          | "wait" %signal "[" (range | expr) "]" ">=" expr "scope" scope
//!          | "fence" "proxy.async"
//!          | "mainloop" product {"," product}
//!          | "store" place "<-" %e7
//!          | "sum" %name "own" %e7 "from" place
//!          | "signal" ["peer" "(" expr ")" "."] %signal "[" expr "]" ("=" | "+=") expr
//!              "scope" scope "after" completion
//!          | "copy" place "<-" place
//! product  = place "*" place ["^T"]
//! place    = ["peer" "(" expr ")" "."] %buffer ["{" exprs "}"] "[" range "," range "]"
//! range    = expr ".." expr
//! expr     = the usual precedence of + - * / %, left to right; "min" "(" expr "," expr ")",
//!            "max" likewise, "ceil" "(" expr "/" expr ")"; %name; M N K world rank epoch cta ctas
//!
//! schedule = target {"," choice "=" (int | name | order | "(" int {"," int} ")")}
//! ```
//!
//! Variables are numbered by first appearance; `vars` is written only where a Program's own
//! numbering differs.

mod cursor;
mod kernel;
mod lex;
mod program;
mod schedule;
mod write;

pub(crate) use program::show_expr;
