//! A kernel's signature: what the parameters are.

use crate::function::{Function, text_of_name};
use crate::position::{at, position};
use crate::suggest::{listed, nearest};
use flux_ir::kernel::{Distribution, ParamType};
use flux_ir::{Diagnostic, Diagnostics, Element, Rule};
use syn::{FnArg, GenericArgument, Pat, PathArguments, ReturnType, Type};

/// A parameter as the macro re-emits it.
#[derive(Debug, Clone)]
pub struct Parameter {
    /// The user's name, with its span.
    pub name: syn::Ident,
    /// What it is; `None` where the type is none of the language and has been reported.
    pub ty: Option<ParamType>,
}

/// The names of the tensor types, in the order of [`Distribution::ALL`].
const TENSORS: [(&str, Distribution); 6] = [
    ("Global", Distribution::Global),
    ("Gathered", Distribution::Gathered),
    ("Sharded", Distribution::Sharded),
    ("Scattered", Distribution::Scattered),
    ("Reduced", Distribution::Reduced),
    ("Exchanged", Distribution::Exchanged),
];

const PARAMETERS: &str = "a parameter is `&Global<T>`, `&mut Global<T>`, `&Gathered<T>`, \
    `&Sharded<T>`, `&mut Sharded<T>`, `&mut Scattered<T>`, `&mut Reduced<T>`, `&Exchanged<T>`, \
    `&mut Exchanged<T>` or `f32`, with `T` one of bf16, f16, f32";

/// The parameters of a kernel, and every rule its signature breaks. Parameters come back even
/// then, so that `launch` keeps its shape for callers while a type is being edited.
pub fn parse_signature(function: &Function) -> (Vec<Parameter>, Diagnostics) {
    let mut errors = Diagnostics::new();
    refuse_qualifiers(function, &mut errors);
    let mut parameters = Vec::new();
    for input in &function.sig.inputs {
        let input = match input {
            FnArg::Typed(input) => input,
            FnArg::Receiver(receiver) => {
                let message = "a kernel is a free function and takes no `self`";
                errors.push(language(position(receiver), message));
                continue;
            }
        };
        let Pat::Ident(pattern) = &*input.pat else {
            let message = "expected a name for this parameter, found a pattern";
            errors.push(
                language(position(&input.pat), message)
                    .help("`launch` repeats the names of the parameters: give this one a name"),
            );
            continue;
        };
        if let Some(token) = &pattern.mutability {
            errors.push(
                language(at(token.span), "a parameter is never assigned")
                    .help(format!("write `{}` without `mut`", pattern.ident)),
            );
        }
        let ty = parameter_type(&input.ty).map_err(|error| errors.push(error)).ok();
        parameters.push(Parameter { name: pattern.ident.clone(), ty });
    }
    (parameters, errors)
}

fn language(span: flux_ir::Span, message: impl Into<String>) -> Diagnostic {
    Diagnostic::new(Rule::Language, span, message)
}

fn refuse_qualifiers(function: &Function, errors: &mut Diagnostics) {
    let sig = &function.sig;
    let name = &sig.ident;
    let words = [
        ("const", sig.constness.map(|t| t.span)),
        ("async", sig.asyncness.map(|t| t.span)),
        ("unsafe", sig.unsafety.map(|t| t.span)),
        ("extern", sig.abi.as_ref().map(|abi| abi.extern_token.span)),
    ];
    for (word, span) in words {
        if let Some(span) = span {
            errors.push(
                language(at(span), format!("a kernel is never `{word}`")).help(format!(
                    "write `fn {name}(…)`: it is compiled for the device, not called"
                )),
            );
        }
    }
    if let Some(parameter) = sig.generics.params.first() {
        errors.push(language(position(parameter), "a kernel has no generic parameters").help(
            "write one kernel for each element type; they can share helper functions \
                    in a `#[flux::module]`",
        ));
    }
    if let ReturnType::Type(_, ty) = &sig.output {
        errors.push(
            language(position(ty), "a kernel returns nothing")
                .help("write results through a `&mut Global<T>` or `&mut Scattered<T>` parameter"),
        );
    }
    if let Some(variadic) = &sig.variadic {
        errors.push(language(position(variadic), "a kernel has a fixed number of parameters"));
    }
}

fn parameter_type(ty: &Type) -> Result<ParamType, Diagnostic> {
    match ty {
        Type::Paren(inner) => parameter_type(&inner.elem),
        Type::Group(inner) => parameter_type(&inner.elem),
        Type::Reference(reference) => {
            let written = reference.mutability.is_some();
            let Type::Path(path) = strip(&reference.elem) else {
                return Err(not_a_parameter(ty));
            };
            if path_name(path).as_deref() == Some("f32") {
                return Err(language(
                    position(ty),
                    "expected a number by value, found a reference",
                )
                .help("write `f32`"));
            }
            tensor_type(path, written)
        }
        Type::Path(path) => match path_name(path).as_deref() {
            Some("f32") => Ok(ParamType::Scalar),
            Some(name @ ("f64" | "bf16" | "f16" | "u32" | "i32" | "usize" | "u64" | "i64")) => {
                Err(language(position(ty), format!("expected `f32`, found `{name}`"))
                    .help("numbers passed at launch are `f32`: arithmetic is done in f32"))
            }
            Some(name) if TENSORS.iter().any(|(tensor, _)| *tensor == name) => {
                let mutable = if matches!(name, "Scattered" | "Reduced") { "mut " } else { "" };
                Err(language(
                    position(ty),
                    format!("expected a reference, found `{name}` by value"),
                )
                .help(format!("write `&{mutable}{}`", text_of(ty))))
            }
            _ => Err(not_a_parameter(ty)),
        },
        _ => Err(not_a_parameter(ty)),
    }
}

fn tensor_type(path: &syn::TypePath, written: bool) -> Result<ParamType, Diagnostic> {
    let segment = path.path.segments.last().expect("a path has a segment");
    let name = text_of_name(&segment.ident);
    let span = at(segment.ident.span());
    let Some((_, distribution)) = TENSORS.iter().find(|(tensor, _)| *tensor == name) else {
        let error = language(span, format!("`{}` cannot be a kernel parameter", text_of(path)));
        let names = TENSORS.map(|(name, _)| name);
        return Err(match nearest(&name, names) {
            Some(meant) => error.help(format!("did you mean `{meant}`?")),
            None => error.help(PARAMETERS),
        });
    };
    match (distribution, written) {
        (Distribution::Gathered, true) => {
            return Err(language(span, format!("a `{name}` tensor is only read"))
                .help(format!("write `&{}`, or `&mut Global<T>` for an output", text_of(path))));
        }
        (Distribution::Scattered, false) => {
            return Err(language(span, "a `Scattered` tensor is only written").help(format!(
                "write `&mut {}`; a shard that is read is `&Sharded<T>`",
                text_of(path)
            )));
        }
        (Distribution::Reduced, false) => {
            return Err(language(span, "a `Reduced` tensor is only written").help(format!(
                "write `&mut {}`; a tensor that is read whole is `&Global<T>`",
                text_of(path)
            )));
        }
        _ => {}
    }
    let element = element_of(&segment.arguments).ok_or_else(|| {
        let found = text_of(&segment.arguments);
        let names: Vec<_> = Element::ALL.iter().map(|e| e.name()).collect();
        let message = if found.is_empty() {
            format!("expected an element type, found none in `{name}`")
        } else {
            format!("expected an element type {}, found `{found}`", listed(&names))
        };
        let place = match &segment.arguments {
            PathArguments::AngleBracketed(args) => args.args.first().map_or(span, position),
            _ => span,
        };
        language(place, message).help(format!("write `{name}<bf16>`"))
    })?;
    Ok(ParamType::Tensor { distribution: *distribution, element, written })
}

/// The element type in `<…>`.
fn element_of(arguments: &PathArguments) -> Option<Element> {
    written_element(arguments).map(|(_, element)| element)
}

/// The element type in `<…>`, as it was written and as it is read.
pub(crate) fn written_element(arguments: &PathArguments) -> Option<(&Type, Element)> {
    let PathArguments::AngleBracketed(arguments) = arguments else {
        return None;
    };
    let mut arguments = arguments.args.iter();
    let (Some(GenericArgument::Type(ty)), None) = (arguments.next(), arguments.next()) else {
        return None;
    };
    let Type::Path(path) = strip(ty) else {
        return None;
    };
    Some((ty, path_name(path)?.parse().ok()?))
}

fn not_a_parameter(ty: &Type) -> Diagnostic {
    language(position(ty), format!("`{}` cannot be a kernel parameter", text_of(ty)))
        .help(PARAMETERS)
}

fn strip(ty: &Type) -> &Type {
    match ty {
        Type::Paren(inner) => strip(&inner.elem),
        Type::Group(inner) => strip(&inner.elem),
        _ => ty,
    }
}

fn path_name(path: &syn::TypePath) -> Option<String> {
    path.path.segments.last().map(|segment| text_of_name(&segment.ident))
}

/// Tokens as a person writes them.
pub(crate) fn text_of(tokens: &impl quote::ToTokens) -> String {
    let mut text = tokens.to_token_stream().to_string();
    for (spaced, tight) in
        [(" < ", "<"), ("< ", "<"), (" >", ">"), (" :: ", "::"), ("& ", "&"), (" ,", ",")]
    {
        text = text.replace(spaced, tight);
    }
    text
}
