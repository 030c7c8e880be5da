//! A thin layer over inkwell: the types and instructions that kernels are made of.
//!
//! Index arithmetic is `i32`, addresses in global memory are `i64`, addresses in shared memory
//! are `i32` (PTX ISA, "State Spaces": shared addresses fit 32 bits). Operands of a wrong type
//! are a mistake of this crate, never of a user, so they end in a panic that says so.

use inkwell::IntPredicate;
use inkwell::attributes::AttributeLoc;
use inkwell::basic_block::BasicBlock;
use inkwell::builder::{Builder, BuilderError};
use inkwell::context::Context;
use inkwell::intrinsics::Intrinsic;
use inkwell::module::Module;
use inkwell::types::{BasicMetadataTypeEnum, BasicType, BasicTypeEnum, FloatType, IntType};
use inkwell::values::{
    AnyValue, BasicMetadataValueEnum, BasicValueEnum, FloatValue, FunctionValue, IntValue,
    PointerValue,
};

pub(crate) type Int<'c> = IntValue<'c>;
pub(crate) type Float<'c> = FloatValue<'c>;
pub(crate) type Block<'c> = BasicBlock<'c>;

/// Comparisons of signed integers.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Is {
    Eq,
    Ne,
    Lt,
    Le,
    Ge,
    /// Less, both taken as unsigned.
    Below,
}

/// A function under construction.
pub(crate) struct Cx<'c> {
    pub(crate) context: &'c Context,
    pub(crate) module: Module<'c>,
    pub(crate) function: FunctionValue<'c>,
    builder: Builder<'c>,
    pub(crate) i16: IntType<'c>,
    pub(crate) i32: IntType<'c>,
    pub(crate) i64: IntType<'c>,
    pub(crate) f32: FloatType<'c>,
}

/// A variable of a thread, promoted to a register by `mem2reg`.
#[derive(Clone, Copy)]
pub(crate) struct Cell<'c> {
    slot: PointerValue<'c>,
    ty: BasicTypeEnum<'c>,
}

fn built<T>(result: Result<T, BuilderError>) -> T {
    result.expect("operands have the types their instruction takes")
}

impl<'c> Cx<'c> {
    pub(crate) fn new(
        context: &'c Context,
        module: Module<'c>,
        function: FunctionValue<'c>,
    ) -> Self {
        let builder = context.create_builder();
        builder.position_at_end(context.append_basic_block(function, "entry"));
        Cx {
            context,
            module,
            function,
            builder,
            i16: context.i16_type(),
            i32: context.i32_type(),
            i64: context.i64_type(),
            f32: context.f32_type(),
        }
    }

    pub(crate) fn int(&self, value: i32) -> Int<'c> {
        self.i32.const_int(value as u32 as u64, false)
    }

    pub(crate) fn uint(&self, value: u32) -> Int<'c> {
        self.i32.const_int(value.into(), false)
    }

    pub(crate) fn long(&self, value: i64) -> Int<'c> {
        self.i64.const_int(value as u64, false)
    }

    pub(crate) fn float(&self, value: f32) -> Float<'c> {
        self.f32.const_float(value.into())
    }

    pub(crate) fn add(&self, a: Int<'c>, b: Int<'c>) -> Int<'c> {
        built(self.builder.build_int_add(a, b, ""))
    }

    pub(crate) fn sub(&self, a: Int<'c>, b: Int<'c>) -> Int<'c> {
        built(self.builder.build_int_sub(a, b, ""))
    }

    pub(crate) fn mul(&self, a: Int<'c>, b: Int<'c>) -> Int<'c> {
        built(self.builder.build_int_mul(a, b, ""))
    }

    pub(crate) fn udiv(&self, a: Int<'c>, b: Int<'c>) -> Int<'c> {
        built(self.builder.build_int_unsigned_div(a, b, ""))
    }

    pub(crate) fn urem(&self, a: Int<'c>, b: Int<'c>) -> Int<'c> {
        built(self.builder.build_int_unsigned_rem(a, b, ""))
    }

    pub(crate) fn and(&self, a: Int<'c>, b: Int<'c>) -> Int<'c> {
        built(self.builder.build_and(a, b, ""))
    }

    pub(crate) fn or(&self, a: Int<'c>, b: Int<'c>) -> Int<'c> {
        built(self.builder.build_or(a, b, ""))
    }

    pub(crate) fn xor(&self, a: Int<'c>, b: Int<'c>) -> Int<'c> {
        built(self.builder.build_xor(a, b, ""))
    }

    pub(crate) fn shl(&self, a: Int<'c>, bits: u32) -> Int<'c> {
        let bits = a.get_type().const_int(bits.into(), false);
        built(self.builder.build_left_shift(a, bits, ""))
    }

    /// Shifts right, filling with zeros.
    pub(crate) fn shr(&self, a: Int<'c>, bits: u32) -> Int<'c> {
        let bits = a.get_type().const_int(bits.into(), false);
        built(self.builder.build_right_shift(a, bits, false, ""))
    }

    pub(crate) fn is(&self, a: Int<'c>, how: Is, b: Int<'c>) -> Int<'c> {
        let predicate = match how {
            Is::Eq => IntPredicate::EQ,
            Is::Ne => IntPredicate::NE,
            Is::Lt => IntPredicate::SLT,
            Is::Le => IntPredicate::SLE,
            Is::Ge => IntPredicate::SGE,
            Is::Below => IntPredicate::ULT,
        };
        built(self.builder.build_int_compare(predicate, a, b, ""))
    }

    pub(crate) fn min(&self, a: Int<'c>, b: Int<'c>) -> Int<'c> {
        self.select(self.is(a, Is::Lt, b), a, b)
    }

    pub(crate) fn max(&self, a: Int<'c>, b: Int<'c>) -> Int<'c> {
        self.select(self.is(a, Is::Lt, b), b, a)
    }

    pub(crate) fn select(&self, cond: Int<'c>, yes: Int<'c>, no: Int<'c>) -> Int<'c> {
        built(self.builder.build_select(cond, yes, no, "")).into_int_value()
    }

    pub(crate) fn select_f(&self, cond: Int<'c>, yes: Float<'c>, no: Float<'c>) -> Float<'c> {
        built(self.builder.build_select(cond, yes, no, "")).into_float_value()
    }

    /// Sign-extends to 64 bits.
    pub(crate) fn widen(&self, a: Int<'c>) -> Int<'c> {
        built(self.builder.build_int_s_extend(a, self.i64, ""))
    }

    pub(crate) fn truncate(&self, a: Int<'c>) -> Int<'c> {
        built(self.builder.build_int_truncate(a, self.i32, ""))
    }

    /// A truth value as 0 or 1 in 32 bits.
    pub(crate) fn bit(&self, cond: Int<'c>) -> Int<'c> {
        built(self.builder.build_int_z_extend(cond, self.i32, ""))
    }

    pub(crate) fn nonzero(&self, a: Int<'c>) -> Int<'c> {
        self.is(a, Is::Ne, a.get_type().const_zero())
    }

    pub(crate) fn not(&self, cond: Int<'c>) -> Int<'c> {
        built(self.builder.build_not(cond, ""))
    }

    pub(crate) fn fadd(&self, a: Float<'c>, b: Float<'c>) -> Float<'c> {
        built(self.builder.build_float_add(a, b, ""))
    }

    pub(crate) fn fsub(&self, a: Float<'c>, b: Float<'c>) -> Float<'c> {
        built(self.builder.build_float_sub(a, b, ""))
    }

    pub(crate) fn fmul(&self, a: Float<'c>, b: Float<'c>) -> Float<'c> {
        built(self.builder.build_float_mul(a, b, ""))
    }

    pub(crate) fn fdiv(&self, a: Float<'c>, b: Float<'c>) -> Float<'c> {
        built(self.builder.build_float_div(a, b, ""))
    }

    pub(crate) fn fneg(&self, a: Float<'c>) -> Float<'c> {
        built(self.builder.build_float_neg(a, ""))
    }

    pub(crate) fn fless(&self, a: Float<'c>, b: Float<'c>) -> Int<'c> {
        built(self.builder.build_float_compare(inkwell::FloatPredicate::OLT, a, b, ""))
    }

    /// An LLVM intrinsic over f32.
    pub(crate) fn math(&self, name: &str, args: &[Float<'c>]) -> Float<'c> {
        let intrinsic = Intrinsic::find(name).expect("LLVM has this intrinsic");
        let function = intrinsic
            .get_declaration(&self.module, &[self.f32.into()])
            .expect("the intrinsic takes f32");
        let args: Vec<BasicMetadataValueEnum> = args.iter().map(|&a| a.into()).collect();
        let call = built(self.builder.build_call(function, &args, ""));
        call.try_as_basic_value().expect_basic("the intrinsic yields a value").into_float_value()
    }

    /// An LLVM intrinsic without operands that yields an `i32`: a special register.
    pub(crate) fn register(&self, name: &str) -> Int<'c> {
        let intrinsic = Intrinsic::find(name).expect("LLVM has this intrinsic");
        let function =
            intrinsic.get_declaration(&self.module, &[]).expect("the intrinsic takes nothing");
        let call = built(self.builder.build_call(function, &[], ""));
        call.try_as_basic_value().expect_basic("the intrinsic yields a value").into_int_value()
    }

    /// Rounds to a narrower float type (to nearest even).
    pub(crate) fn round(&self, a: Float<'c>, to: FloatType<'c>) -> Float<'c> {
        built(self.builder.build_float_trunc(a, to, ""))
    }

    pub(crate) fn extend(&self, a: Float<'c>) -> Float<'c> {
        built(self.builder.build_float_ext(a, self.f32, ""))
    }

    pub(crate) fn bits_f32(&self, a: Int<'c>) -> Float<'c> {
        built(self.builder.build_bit_cast(a, self.f32, "")).into_float_value()
    }

    pub(crate) fn f32_bits(&self, a: Float<'c>) -> Int<'c> {
        built(self.builder.build_bit_cast(a, self.i32, "")).into_int_value()
    }

    pub(crate) fn bits_to(&self, a: Int<'c>, ty: FloatType<'c>) -> Float<'c> {
        built(self.builder.build_bit_cast(a, ty, "")).into_float_value()
    }

    pub(crate) fn to_i16(&self, a: Int<'c>) -> Int<'c> {
        built(self.builder.build_int_truncate(a, self.i16, ""))
    }

    pub(crate) fn address_of(&self, pointer: PointerValue<'c>) -> Int<'c> {
        built(self.builder.build_ptr_to_int(pointer, self.i64, ""))
    }

    /// The 32-bit address of something in shared memory.
    pub(crate) fn shared_address(&self, pointer: PointerValue<'c>) -> Int<'c> {
        built(self.builder.build_ptr_to_int(pointer, self.i32, ""))
    }

    /// Word `index` of an array of `i64` behind a parameter.
    pub(crate) fn word(&self, words: PointerValue<'c>, index: u32) -> Int<'c> {
        let array = self.i64.array_type(index + 1);
        let at = [self.int(0), self.uint(index)];
        // SAFETY: the parameter holds more words than any index derived from its own list.
        let pointer = unsafe { self.builder.build_in_bounds_gep(array, words, &at, "") };
        built(self.builder.build_load(self.i64, built(pointer), "")).into_int_value()
    }

    /// A variable that lives in the entry block.
    pub(crate) fn cell(&self, ty: impl BasicType<'c>) -> Cell<'c> {
        let ty = ty.as_basic_type_enum();
        let here = self.here();
        let entry = self.function.get_first_basic_block().expect("the function has an entry");
        match entry.get_first_instruction() {
            Some(first) => self.builder.position_before(&first),
            None => self.builder.position_at_end(entry),
        }
        let slot = built(self.builder.build_alloca(ty, ""));
        self.builder.position_at_end(here);
        Cell { slot, ty }
    }

    pub(crate) fn cell_of(&self, value: Int<'c>) -> Cell<'c> {
        let cell = self.cell(value.get_type());
        self.set(cell, value);
        cell
    }

    pub(crate) fn set(&self, cell: Cell<'c>, value: Int<'c>) {
        built(self.builder.build_store(cell.slot, value));
    }

    pub(crate) fn set_f(&self, cell: Cell<'c>, value: Float<'c>) {
        built(self.builder.build_store(cell.slot, value));
    }

    pub(crate) fn get(&self, cell: Cell<'c>) -> Int<'c> {
        built(self.builder.build_load(cell.ty, cell.slot, "")).into_int_value()
    }

    pub(crate) fn get_f(&self, cell: Cell<'c>) -> Float<'c> {
        built(self.builder.build_load(cell.ty, cell.slot, "")).into_float_value()
    }

    pub(crate) fn block(&self, name: &str) -> Block<'c> {
        self.context.append_basic_block(self.function, name)
    }

    pub(crate) fn here(&self) -> Block<'c> {
        self.builder.get_insert_block().expect("the builder stands in a block")
    }

    pub(crate) fn at(&self, block: Block<'c>) {
        self.builder.position_at_end(block);
    }

    pub(crate) fn jump(&self, to: Block<'c>) {
        built(self.builder.build_unconditional_branch(to));
    }

    pub(crate) fn branch(&self, cond: Int<'c>, yes: Block<'c>, no: Block<'c>) {
        built(self.builder.build_conditional_branch(cond, yes, no));
    }

    pub(crate) fn ret(&self) {
        built(self.builder.build_return(None));
    }

    /// Runs `then` where `cond` holds.
    pub(crate) fn when<E>(
        &self,
        cond: Int<'c>,
        then: impl FnOnce() -> Result<(), E>,
    ) -> Result<(), E> {
        let (yes, after) = (self.block("then"), self.block("after"));
        self.branch(cond, yes, after);
        self.at(yes);
        then()?;
        self.jump(after);
        self.at(after);
        Ok(())
    }

    /// Runs `then` where `cond` holds, else `other`.
    pub(crate) fn either<E>(
        &self,
        cond: Int<'c>,
        then: impl FnOnce() -> Result<(), E>,
        other: impl FnOnce() -> Result<(), E>,
    ) -> Result<(), E> {
        let (yes, no, after) = (self.block("then"), self.block("else"), self.block("after"));
        self.branch(cond, yes, no);
        self.at(yes);
        then()?;
        self.jump(after);
        self.at(no);
        other()?;
        self.jump(after);
        self.at(after);
        Ok(())
    }

    /// Runs `body` for `var` in `var..to` by `step`; `var` holds its first value.
    pub(crate) fn count<E>(
        &self,
        var: Cell<'c>,
        to: Int<'c>,
        step: Int<'c>,
        body: impl FnOnce() -> Result<(), E>,
    ) -> Result<(), E> {
        let (head, inside, after) = (self.block("head"), self.block("body"), self.block("after"));
        self.jump(head);
        self.at(head);
        self.branch(self.is(self.get(var), Is::Lt, to), inside, after);
        self.at(inside);
        body()?;
        self.set(var, self.add(self.get(var), step));
        self.jump(head);
        self.at(after);
        Ok(())
    }

    /// Calls a function of another module; declared where it was not.
    pub(crate) fn call(
        &self,
        name: &str,
        args: &[Int<'c>],
        result: Option<IntType<'c>>,
    ) -> Option<Int<'c>> {
        let types: Vec<BasicMetadataTypeEnum> = args.iter().map(|a| a.get_type().into()).collect();
        let ty = match result {
            Some(result) => result.fn_type(&types, false),
            None => self.context.void_type().fn_type(&types, false),
        };
        let declare = || self.module.add_function(name, ty, None);
        let function = self.module.get_function(name).unwrap_or_else(declare);
        let args: Vec<BasicMetadataValueEnum> = args.iter().map(|&a| a.into()).collect();
        let call = built(self.builder.build_call(function, &args, ""));
        let kind = inkwell::attributes::Attribute::get_named_enum_kind_id;
        for name in ["nounwind", "convergent"] {
            let attribute = self.context.create_enum_attribute(kind(name), 0);
            call.add_attribute(AttributeLoc::Function, attribute);
        }
        result
            .map(|_| call.try_as_basic_value().expect_basic("it yields a number").into_int_value())
    }

    /// Inline assembly. `pure` assembly may be moved, merged and dropped; any other is a
    /// convergent side effect, and clobbers memory where its constraints say so.
    pub(crate) fn asm(
        &self,
        pure: bool,
        text: &str,
        constraints: &str,
        result: Option<BasicTypeEnum<'c>>,
        args: &[BasicMetadataValueEnum<'c>],
    ) -> Option<BasicValueEnum<'c>> {
        let types: Vec<BasicMetadataTypeEnum> = args
            .iter()
            .map(|arg| match arg {
                BasicMetadataValueEnum::IntValue(v) => v.get_type().into(),
                BasicMetadataValueEnum::FloatValue(v) => v.get_type().into(),
                other => unreachable!(
                    "assembly takes integers and floats, not {}",
                    other.as_any_value_enum()
                ),
            })
            .collect();
        let ty = match result {
            Some(result) => result.fn_type(&types, false),
            None => self.context.void_type().fn_type(&types, false),
        };
        let (text, constraints) = (text.to_owned(), constraints.to_owned());
        let asm = self.context.create_inline_asm(ty, text, constraints, !pure, false, None, false);
        let call = built(self.builder.build_indirect_call(ty, asm, args, ""));
        let attribute = |name| {
            let kind = inkwell::attributes::Attribute::get_named_enum_kind_id(name);
            self.context.create_enum_attribute(kind, 0)
        };
        call.add_attribute(AttributeLoc::Function, attribute("nounwind"));
        if !pure {
            call.add_attribute(AttributeLoc::Function, attribute("convergent"));
        }
        result.map(|_| call.try_as_basic_value().expect_basic("the assembly yields a value"))
    }

    /// Member `index` of a struct that assembly with several results yields.
    pub(crate) fn member(&self, of: BasicValueEnum<'c>, index: u32) -> BasicValueEnum<'c> {
        built(self.builder.build_extract_value(of.into_struct_value(), index, ""))
    }
}
