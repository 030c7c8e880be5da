//! What a kernel becomes: the user's function, token for token, and the struct that launches it.
//!
//! An editor looks for the user's tokens in the expansion, and rustc checks them there. So the
//! function comes out whatever is wrong with it, and the struct keeps its shape for callers even
//! while the kernel is being written.

use crate::compile::Compiled;
use crate::model::Model;
use crate::report;
use flux_ir::kernel::{Distribution, ParamType};
use flux_ir::{
    AllGather, AllReduce, Arrival, Balance, Cache, Consumers, Departure, Element, Head, Order,
    ReduceScatter, Schedule, Tail, Target, Transport,
};
use flux_syntax::{Function, ModuleScope, OrderSyntax, ScheduleSyntax, SpanMap, is_attribute};
use proc_macro2::{Span, TokenStream};
use quote::{ToTokens, format_ident, quote, quote_spanned};
use syn::ext::IdentExt;
use syn::parse::Parser;
use syn::spanned::Spanned;
use syn::{Attribute, FnArg};

/// `#[flux::kernel]`.
pub(crate) fn kernel(args: TokenStream, item: TokenStream) -> TokenStream {
    if let Some(refused) = report::too_deep(&item) {
        return refused;
    }
    let mut spans = SpanMap::of(item.clone());
    spans.add(args.clone());
    let function: Function = match syn::parse2(item.clone()) {
        Ok(function) => function,
        Err(error) => {
            // An unfinished function has been reported by rustc; anything else is no function.
            let known: Result<syn::Item, _> = syn::parse2(item.clone());
            let report = known.is_ok().then(|| {
                report::error(error.span(), "`#[flux::kernel]` makes a kernel of a function")
            });
            return quote!(#item #report);
        }
    };
    let refused = refuse_arguments(args, "kernel");
    let kernel = expand(Model::of(function, &ModuleScope::default()), &spans);
    quote!(#kernel #refused)
}

/// `#[schedule(…)]` above `#[flux::kernel]` moves below it; without a kernel it is a mistake.
pub(crate) fn schedule(args: TokenStream, item: TokenStream) -> TokenStream {
    if let Some(refused) = report::too_deep(&item) {
        return refused;
    }
    let Ok(mut function) = syn::parse2::<Function>(item.clone()) else {
        let message = "`#[schedule(…)]` belongs to a kernel: a function under `#[flux::kernel]`";
        let report = report::error(Span::call_site(), message);
        return quote!(#item #report);
    };
    let Some(at) = function.attrs.iter().position(|attr| is_attribute(attr, "kernel")) else {
        let name = function.name();
        let message = format!(
            "`#[schedule(…)]` belongs to a kernel, and `{name}` is none\
             \nhelp: put `#[flux::kernel]` on it"
        );
        let report = report::error(Span::call_site(), &message);
        return quote!(#item #report);
    };
    let attribute = Attribute::parse_outer.parse2(quote!(#[schedule(#args)]));
    // Schedules keep their order: this one stood above all that follow the kernel's attribute.
    function.attrs.splice(at + 1..at + 1, attribute.into_iter().flatten());
    function.to_token_stream()
}

/// The macros take no arguments of their own.
pub(crate) fn refuse_arguments(args: TokenStream, name: &str) -> Option<TokenStream> {
    let first = args.into_iter().next()?;
    let message = format!(
        "`#[flux::{name}]` takes no arguments\
         \nhelp: how a kernel runs is said by `#[schedule(sm_90a, tile = (128, 256, 64))]`"
    );
    Some(report::error(first.span(), &message))
}

/// A kernel's function and struct, and what is wrong with it.
pub(crate) fn expand(model: Model, spans: &SpanMap) -> TokenStream {
    let function = &model.function;
    let name = &function.sig.ident;
    let companion = companion(&model);
    let guard = guard(&model);
    let errors = report::errors(&model.errors, spans, name.span());
    let original = if model.errors.is_empty() { never_called(function) } else { hidden(function) };
    let assertions = &model.assertions;
    quote!(#original #companion #guard #(#assertions)* #errors)
}

/// The user's function, for rustc to check and editors to complete.
fn never_called(function: &Function) -> TokenStream {
    quote! {
        #[allow(
            dead_code,
            clippy::too_many_arguments,
            clippy::needless_pass_by_ref_mut,
            reason = "a kernel is read and compiled, never called"
        )]
        #function
    }
}

/// The user's function where a mistake in it has been reported: rustc would report the same one
/// again, in its own words and with what follows from it. An editor still sees every token.
fn hidden(function: &Function) -> TokenStream {
    let original = never_called(function);
    let Function { vis, sig, .. } = function;
    quote! {
        #[allow(unexpected_cfgs, reason = "rust-analyzer sets it, and cargo does not know")]
        const _: () = {
            #[cfg(rust_analyzer)]
            #original
        };
        #[allow(unused, clippy::all, reason = "it stands for the function above")]
        #vis #sig {
            loop {}
        }
    }
}

/// Whether the tiles of a kernel are of the rows that a rank owns.
fn of_own_rows(model: &Model) -> bool {
    let tiled = model.kernel.as_ref().and_then(|kernel| kernel.tensor(kernel.tiles_of));
    matches!(tiled, Some((Distribution::Sharded | Distribution::Exchanged, ..)))
}

/// How a kernel of own rows is launched where ranks own other numbers of them.
fn launch_with_rows(
    vis: &syn::Visibility,
    parameters: &[TokenStream],
    arguments: &[TokenStream],
) -> TokenStream {
    // A parameter may have this name as well.
    let rows = syn::Ident::new("rows", Span::mixed_site());
    quote! {
        /// Runs the kernel once, over ranks that own so many rows each, in the order of ranks. Every
        /// rank passes the same; they add up to the rows of exchanged tensors.
        ///
        /// # Errors
        /// As `launch`; rows that are not those of the tensors.
        #vis fn launch_with_rows(
            &self,
            #rows: &[::core::primitive::usize],
            #(#parameters),*
        ) -> ::core::result::Result<(), ::flux::Error> {
            self.kernel.launch_with_rows(#rows, &mut [#(#arguments),*])
        }
    }
}

fn companion(model: &Model) -> TokenStream {
    let Function { attrs, vis, sig, .. } = &model.function;
    let name = &sig.ident;
    // `r#name` is `name`, here as in Kernel IR.
    let name_text = model.function.name();
    let docs =
        attrs.iter().filter(|attr| attr.path().is_ident("doc") || attr.path().is_ident("cfg"));
    let cfgs: Vec<_> = attrs.iter().filter(|attr| attr.path().is_ident("cfg")).collect();
    let text = model.kernel.as_ref().map(ToString::to_string).unwrap_or_default();
    let schedules = model.schedules.iter().map(schedule_value);
    let images = model.compiled.iter().map(|(index, compiled)| image(*index, compiled));
    let parameters = model.parameters.iter().map(|parameter| {
        let name = &parameter.name;
        let ty = match parameter.ty {
            Some(ParamType::Tensor { element, written, .. }) => {
                let element = element_type(element);
                let mutable = written.then(|| quote!(mut));
                quote!(& #mutable ::flux::Tensor<#element>)
            }
            Some(ParamType::Scalar) => quote!(::core::primitive::f32),
            // Reported; until it is mended, callers keep their argument.
            None => quote!(impl ::core::marker::Sized),
        };
        quote!(#name: #ty)
    });
    let parameters: Vec<_> = parameters.collect();
    let arguments = model.parameters.iter().filter_map(|parameter| {
        let name = &parameter.name;
        let constructor = match parameter.ty? {
            ParamType::Tensor { written: false, .. } => quote!(input),
            ParamType::Tensor { written: true, .. } => quote!(output),
            ParamType::Scalar => quote!(scalar),
        };
        Some(quote!(::flux::__private::Arg::#constructor(#name)))
    });
    let arguments: Vec<_> = arguments.collect();
    let with_rows = of_own_rows(model).then(|| launch_with_rows(vis, &parameters, &arguments));
    let unknown = model.parameters.iter().filter(|parameter| parameter.ty.is_none());
    let unknown = unknown.map(|parameter| &parameter.name);
    quote! {
        #(#docs)*
        #[allow(non_camel_case_types, reason = "it bears the kernel's name")]
        #vis struct #name {
            kernel: ::flux::__private::Loaded,
        }

        #(#cfgs)*
        #[allow(dead_code, clippy::too_many_arguments, reason = "callers take what they need")]
        impl #name {
            /// The kernel as it was compiled: Kernel IR, schedules and machine code.
            #vis fn definition() -> &'static ::flux::Definition {
                static DEFINITION: ::flux::Definition = ::flux::Definition {
                    name: #name_text,
                    file: ::core::file!(),
                    text: #text,
                    schedules: &|| ::std::vec![#(#schedules),*],
                    images: &[#(#images),*],
                };
                &DEFINITION
            }

            /// Loads the kernel on `rank`, under the schedules it was compiled with.
            ///
            /// # Errors
            /// Where the rank's device cannot run it.
            #vis fn load(rank: &::flux::Rank) -> ::core::result::Result<Self, ::flux::Error> {
                let kernel = ::flux::__private::Loaded::new(
                    Self::definition(),
                    rank,
                    ::core::option::Option::None,
                )?;
                ::core::result::Result::Ok(Self { kernel })
            }

            /// Loads the kernel on `rank`, under another schedule.
            ///
            /// # Errors
            /// Where the schedule does not fit the kernel or the device.
            #vis fn load_with(
                rank: &::flux::Rank,
                schedule: &::flux::Schedule,
            ) -> ::core::result::Result<Self, ::flux::Error> {
                let kernel = ::flux::__private::Loaded::new(
                    Self::definition(),
                    rank,
                    ::core::option::Option::Some(schedule),
                )?;
                ::core::result::Result::Ok(Self { kernel })
            }

            /// Runs the kernel once. Every rank of the world launches it with the same shape.
            ///
            /// # Errors
            /// Shapes that do not fit, ranks that disagree, and what goes wrong on the way: an
            /// output is then not to be used.
            #vis fn launch(
                &self,
                #(#parameters),*
            ) -> ::core::result::Result<(), ::flux::Error> {
                #(let _ = #unknown;)*
                self.kernel.launch(&mut [#(#arguments),*])
            }

            #with_rows
        }

        #(#cfgs)*
        impl ::core::fmt::Debug for #name {
            fn fmt(&self, f: &mut ::core::fmt::Formatter<'_>) -> ::core::fmt::Result {
                f.debug_struct(#name_text).finish_non_exhaustive()
            }
        }
    }
}

fn element_type(element: Element) -> TokenStream {
    match element {
        Element::Bf16 => quote!(::flux::lang::bf16),
        Element::F16 => quote!(::flux::lang::f16),
        Element::F32 => quote!(::core::primitive::f32),
    }
}

fn image(index: usize, compiled: &Compiled) -> TokenStream {
    let Compiled { entry, shared_bytes, fingerprint, ptx } = compiled;
    quote! {
        ::flux::__private::Image {
            schedule: #index,
            entry: #entry,
            ptx: #ptx,
            shared_bytes: #shared_bytes,
            fingerprint: #fingerprint,
            recorded: false,
        }
    }
}

/// The expression that makes the schedule's value.
fn schedule_value(syntax: &ScheduleSyntax) -> TokenStream {
    let Schedule {
        target,
        tile,
        stages,
        consumers,
        split_k,
        balance,
        cache,
        order: _,
        transport,
        all_gather,
        all_reduce,
        reduce_scatter,
        partials,
        chunk_rows,
        head,
        tail,
        ctas,
        jitter,
        node,
    } = &syntax.schedule;
    let target = match target {
        Target::Host => quote!(host),
        Target::Sm90a => quote!(sm_90a),
    };
    let (m, n, k) = (tile.m, tile.n, tile.k);
    let consumers = match consumers {
        Consumers::Cooperative => quote!(Cooperative),
        Consumers::PingPong => quote!(PingPong),
        Consumers::Single => quote!(Single),
    };
    let balance = match balance {
        Balance::Tiles => quote!(Tiles),
        Balance::StreamK => quote!(StreamK),
        Balance::Pairs => quote!(Pairs),
    };
    let cache = match cache {
        Cache::Normal => quote!(Normal),
        Cache::StreamB => quote!(StreamB),
    };
    let transport = transport.map(|transport| match transport {
        Transport::CopyEngine => quote!(.transport(::flux::Transport::CopyEngine)),
        Transport::CopyFirst => quote!(.transport(::flux::Transport::CopyFirst)),
        Transport::Put => quote!(.transport(::flux::Transport::Put)),
        Transport::Tma => quote!(.transport(::flux::Transport::Tma)),
    });
    let all_gather = all_gather.map(|algorithm| match algorithm {
        AllGather::Push => quote!(.all_gather(::flux::AllGather::Push)),
        AllGather::Pull => quote!(.all_gather(::flux::AllGather::Pull)),
        AllGather::Ring => quote!(.all_gather(::flux::AllGather::Ring)),
    });
    let all_reduce = all_reduce.map(|algorithm| match algorithm {
        AllReduce::OneShot => quote!(.all_reduce(::flux::AllReduce::OneShot)),
        AllReduce::TwoShot => quote!(.all_reduce(::flux::AllReduce::TwoShot)),
        AllReduce::Flagged => quote!(.all_reduce(::flux::AllReduce::Flagged)),
    });
    let reduce_scatter = reduce_scatter.map(|algorithm| match algorithm {
        ReduceScatter::LocalSum => quote!(.reduce_scatter(::flux::ReduceScatter::LocalSum)),
        ReduceScatter::Add => quote!(.reduce_scatter(::flux::ReduceScatter::Add)),
        ReduceScatter::Ring => quote!(.reduce_scatter(::flux::ReduceScatter::Ring)),
        ReduceScatter::Pull => quote!(.reduce_scatter(::flux::ReduceScatter::Pull)),
    });
    let partials = partials.map(|element| match element {
        Element::Bf16 => quote!(.partials(::flux::ElementKind::Bf16)),
        Element::F16 => quote!(.partials(::flux::ElementKind::F16)),
        Element::F32 => quote!(.partials(::flux::ElementKind::F32)),
    });
    let order = match &syntax.order {
        OrderSyntax::Default => None,
        OrderSyntax::BuiltIn(order) => built_in(order),
        OrderSyntax::Custom { name, tokens, .. } => {
            Some(quote!(::flux::Order::custom(#name, #tokens)))
        }
    };
    let order = order.map(|order| quote!(.order(#order)));
    let chunk_rows = chunk_rows.map(|rows| quote!(.chunk_rows(#rows)));
    let head = head.map(|Head { rows, copies }| quote!(.head(#rows, #copies)));
    let tail = tail.map(|Tail { rows, slices }| quote!(.tail(#rows, #slices)));
    let ctas = ctas.map(|ctas| quote!(.ctas(#ctas)));
    let jitter = (*jitter != 0).then(|| quote!(.jitter(#jitter)));
    let node = (*node != 0).then(|| quote!(.node(#node)));
    quote! {
        ::flux::Schedule::#target()
            .tile(#m, #n, #k)
            .stages(#stages)
            .consumers(::flux::Consumers::#consumers)
            .split_k(#split_k)
            .balance(::flux::Balance::#balance)
            .cache(::flux::Cache::#cache)
            #transport
            #all_gather
            #all_reduce
            #reduce_scatter
            #partials
            #order
            #chunk_rows
            #head
            #tail
            #ctas
            #jitter
            #node
    }
}

fn built_in(order: &Order) -> Option<TokenStream> {
    let variant = match order {
        Order::RowMajor => quote!(RowMajor),
        Order::ColumnMajor => quote!(ColumnMajor),
        Order::Grouped(rows) => quote!(Grouped(#rows)),
        Order::OwnShardFirst => quote!(OwnShardFirst),
        Order::Arrival(Arrival { chunk, tail, pace }) => {
            quote!(Arrival(::flux::Arrival { chunk: #chunk, tail: #tail, pace: #pace }))
        }
        Order::NextRankFirst => quote!(NextRankFirst),
        Order::NextColumnsFirst => quote!(NextColumnsFirst),
        Order::Departure(Departure { rows, shards }) => {
            quote!(Departure(::flux::Departure { rows: #rows, shards: #shards }))
        }
        Order::Xor => quote!(Xor),
        Order::TwoNuma => quote!(TwoNuma),
        // Written as the user wrote it, in `OrderSyntax::Custom`.
        Order::Custom(_) => return None,
    };
    Some(quote!(::flux::Order::#variant))
}

/// Tokens do not tell whether `gelu` is the one of the language or another that the file defines
/// or imports. Two function items have one type only if they are the same function, so rustc
/// tells, at the user's token. As much holds for `bf16` and the types of the parameters.
fn guard(model: &Model) -> Option<TokenStream> {
    model.kernel.as_ref()?;
    let functions = model.functions.iter().map(same_function);
    let parameters = model.function.sig.inputs.iter().zip(&model.parameters);
    let parameters = parameters.filter_map(|(input, parameter)| match input {
        FnArg::Typed(input) => Some(same_type(&input.ty, &language_type(parameter.ty?))),
        FnArg::Receiver(_) => None,
    });
    let casts = model.casts.iter().map(|(written, read)| same_type(written, &element_type(*read)));
    let has_functions = (!model.functions.is_empty()).then(|| {
        quote! {
            fn is_of_the_language<T>(_: T, _: T) {}
        }
    });
    let cfgs = model.function.attrs.iter().filter(|attr| attr.path().is_ident("cfg"));
    Some(quote! {
        #(#cfgs)*
        const _: fn() = || {
            #has_functions
            #(#functions)*
            #(#parameters)*
            #(#casts)*
        };
    })
}

fn same_function(written: &syn::Path) -> Option<TokenStream> {
    let last = &written.segments.last()?.ident;
    let function = last.unraw().to_string();
    let name = format_ident!("{function}", span = Span::call_site());
    let lang = quote!(::flux::lang);
    let generics = match function.as_str() {
        "gemm" => {
            let operand = quote!(&'static #lang::Global<f32>);
            Some(quote!(::<f32, #operand, #operand, #lang::Tile>))
        }
        "symmetric" | "flagged" => Some(quote!(::<f32>)),
        "role" => Some(quote!(::<fn()>)),
        "owners" => Some(quote!(::<#lang::Rows>)),
        "max" | "min" => Some(quote!(::<#lang::Fragment, #lang::Fragment>)),
        "cast" => Some(quote!(::<f32>)),
        _ => None,
    };
    Some(quote_spanned! {last.span()=>
        is_of_the_language(#lang::#name #generics, #written #generics);
    })
}

fn same_type(written: &syn::Type, read: &TokenStream) -> TokenStream {
    quote_spanned! {written.span()=>
        let _: ::core::marker::PhantomData<#read> = ::core::marker::PhantomData::<#written>;
    }
}

/// The type of a kernel's parameter, as it was read.
fn language_type(ty: ParamType) -> TokenStream {
    match ty {
        ParamType::Scalar => quote!(::core::primitive::f32),
        ParamType::Tensor { distribution, element, written } => {
            let element = element_type(element);
            let mutable = written.then(|| quote!(mut));
            let tensor = match distribution {
                Distribution::Global => quote!(Global),
                Distribution::Gathered => quote!(Gathered),
                Distribution::Sharded => quote!(Sharded),
                Distribution::Scattered => quote!(Scattered),
                Distribution::Reduced => quote!(Reduced),
                Distribution::Exchanged => quote!(Exchanged),
            };
            quote!(& #mutable ::flux::lang::#tensor<#element>)
        }
    }
}
