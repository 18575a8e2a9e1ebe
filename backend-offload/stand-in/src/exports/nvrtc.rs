//! NVRTC, the run-time compiler. A lock of its own lets threads compile in parallel.

use std::{
    collections::HashMap,
    ffi::{CStr, c_char, c_int},
    ptr,
    sync::{LazyLock, Mutex, MutexGuard, PoisonError},
};

use super::{device::VERSION, status::Out};
use crate::{
    findings::{Fault, Finding},
    kernels::compile,
};

#[repr(i32)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    Success = 0,
    InvalidInput = 3,
    InvalidProgram = 4,
    Compilation = 6,
}

#[derive(Debug, Default, Clone)]
struct Program {
    source: String,
    log: String,
    ptx: String,
}

static PROGRAMS: LazyLock<Mutex<HashMap<u64, Program>>> = LazyLock::new(Mutex::default);

fn programs() -> MutexGuard<'static, HashMap<u64, Program>> {
    PROGRAMS.lock().unwrap_or_else(PoisonError::into_inner)
}

fn put<T>(out: Out<T>, value: T) -> Outcome {
    if out.put(value) == super::status::Status::Success { Outcome::Success } else { Outcome::InvalidInput }
}

#[unsafe(no_mangle)]
pub extern "C" fn nvrtcVersion(major: Out<c_int>, minor: Out<c_int>) -> Outcome {
    _ = put(major, VERSION.0);
    put(minor, VERSION.1)
}

#[unsafe(no_mangle)]
pub extern "C" fn nvrtcGetErrorString(outcome: c_int) -> *const c_char {
    match outcome {
        0 => c"NVRTC_SUCCESS",
        3 => c"NVRTC_ERROR_INVALID_INPUT",
        4 => c"NVRTC_ERROR_INVALID_PROGRAM",
        6 => c"NVRTC_ERROR_COMPILATION",
        _ => c"an error of the stand-in for NVRTC",
    }
    .as_ptr()
}

/// # Safety
/// `source` must be a zero-terminated string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvrtcCreateProgram(
    program: Out<u64>,
    source: *const c_char,
    _name: *const c_char,
    _headers: c_int,
    _header_texts: *const *const c_char,
    _header_names: *const *const c_char,
) -> Outcome {
    // SAFETY: promised by the caller.
    let source = unsafe { CStr::from_ptr(source) }.to_string_lossy().into_owned();
    let mut programs = programs();
    let handle = programs.keys().max().copied().unwrap_or_default() + 16;
    programs.insert(handle, Program { source, ..Program::default() });
    put(program, handle)
}

/// # Safety
/// `program` must point to a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvrtcDestroyProgram(program: *mut u64) -> Outcome {
    // SAFETY: promised by the caller.
    let handle = unsafe { program.replace(0) };
    programs().remove(&handle).map_or(Outcome::InvalidProgram, |_| Outcome::Success)
}

/// # Safety
/// `options` must point to `count` zero-terminated strings.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvrtcCompileProgram(
    program: u64,
    count: c_int,
    options: *const *const c_char,
) -> Outcome {
    // SAFETY: promised by the caller.
    let option = |index| unsafe { CStr::from_ptr(*options.add(index)) }.to_string_lossy().into_owned();
    let options: Vec<String> = (0..count.max(0) as usize).map(option).collect();
    let Some(mut compiled) = programs().get(&program).cloned() else { return Outcome::InvalidProgram };
    let outcome = match compile(&compiled.source, &options) {
        Ok(image) => {
            compiled.ptx = image.text();
            Outcome::Success
        }
        Err(log) => {
            let first =
                log.lines().find(|line| line.contains("error")).unwrap_or("the compiler says nothing");
            let first = first.strip_prefix("error: ").unwrap_or(first);
            Fault::new(Finding::KernelRefused, first).report();
            compiled.log = log;
            Outcome::Compilation
        }
    };
    programs().insert(program, compiled);
    outcome
}

#[unsafe(no_mangle)]
pub extern "C" fn nvrtcGetProgramLogSize(program: u64, size: Out<usize>) -> Outcome {
    size_of_text(program, size, |program| &program.log)
}

/// # Safety
/// `log` must have the size that `nvrtcGetProgramLogSize` returned.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvrtcGetProgramLog(program: u64, log: *mut c_char) -> Outcome {
    // SAFETY: promised by the caller.
    unsafe { write_text(program, log, |program| &program.log) }
}

#[unsafe(no_mangle)]
pub extern "C" fn nvrtcGetPTXSize(program: u64, size: Out<usize>) -> Outcome {
    size_of_text(program, size, |program| &program.ptx)
}

/// # Safety
/// `ptx` must have the size that `nvrtcGetPTXSize` returned.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvrtcGetPTX(program: u64, ptx: *mut c_char) -> Outcome {
    // SAFETY: promised by the caller.
    unsafe { write_text(program, ptx, |program| &program.ptx) }
}

/// Includes the final zero.
fn size_of_text(program: u64, size: Out<usize>, text: impl Fn(&Program) -> &String) -> Outcome {
    programs().get(&program).map_or(Outcome::InvalidProgram, |program| put(size, text(program).len() + 1))
}

/// # Safety
/// `to` must have room for the text and a zero.
unsafe fn write_text(program: u64, to: *mut c_char, text: impl Fn(&Program) -> &String) -> Outcome {
    let programs = programs();
    let Some(program) = programs.get(&program) else { return Outcome::InvalidProgram };
    let text = text(program);
    // SAFETY: promised by the caller.
    unsafe {
        ptr::copy_nonoverlapping(text.as_ptr(), to.cast(), text.len());
        to.add(text.len()).write(0);
    }
    Outcome::Success
}
