//! Program to LLVM module to PTX.
