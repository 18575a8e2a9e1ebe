//! Modules and launches. A module holds one kernel, so a function's handle is its module's.

use std::{
    collections::BTreeSet,
    ffi::{CStr, c_char, c_int, c_uint, c_void},
    sync::Arc,
};

use super::{
    device::{current_device, shared_memory},
    entry::call,
    status::{Out, Status, invalid_handle, require_same_device},
};
use crate::{
    driver::{Driver, Work, driver},
    fibers::Dim,
    findings::{Fault, Finding, require},
    handles::{Module, Stream},
    kernels::{Kernel, Launch, Line, Parameter},
    prices::CallKind,
    timeline::{Engine, Task},
};

/// Bytes of dynamic shared memory that a launch may request, unless its function's attribute permits more.
const SHARED: usize = 48 << 10;
/// The attribute.
const MOST_DYNAMIC_SHARED: c_int = 8;

/// # Safety
/// `image` must be a zero-terminated string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuModuleLoadData(module: Out<u64>, image: *const c_char) -> Status {
    // SAFETY: promised by the caller.
    let text = unsafe { CStr::from_ptr(image) }.to_string_lossy();
    let Some(image) = crate::kernels::Image::parse(&text) else { return Status::InvalidPtx };
    match Kernel::load(&image) {
        Ok(kernel) => call("cuModuleLoadData", CallKind::Other, |driver| {
            let device = current_device("cuModuleLoadData")?;
            let handle = driver.handles.next();
            let loaded = Module { device, kernel: Arc::new(kernel), shared: SHARED };
            driver.handles.modules.insert(handle, loaded);
            module.put(handle).result()
        }),
        Err(problem) => {
            eprintln!("stand-in: a kernel could not be loaded: {problem}");
            Status::InvalidImage
        }
    }
}

/// Queued launches keep their kernel.
#[unsafe(no_mangle)]
pub extern "C" fn cuModuleUnload(module: u64) -> Status {
    call("cuModuleUnload", CallKind::Other, |driver| {
        let known = driver.handles.modules.remove(&module).is_some();
        known.then_some(()).ok_or_else(|| invalid_handle(module, "module", "cuModuleUnload"))
    })
}

/// # Safety
/// `name` must be a zero-terminated string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuModuleGetFunction(function: Out<u64>, module: u64, name: *const c_char) -> Status {
    // SAFETY: promised by the caller.
    let name = unsafe { CStr::from_ptr(name) }.to_string_lossy();
    call("cuModuleGetFunction", CallKind::Other, |driver| match driver.handles.modules.get(&module) {
        Some(loaded) if loaded.kernel.name == name => function.put(module).result(),
        Some(_) => Err(Status::NotFound),
        None => Err(invalid_handle(module, "module", "cuModuleGetFunction")),
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuFuncSetAttribute(function: u64, attribute: c_int, value: c_int) -> Status {
    let mut driver = driver();
    let most = shared_memory(driver.settings.device.capability as c_int);
    let Some(module) = driver.handles.modules.get_mut(&function) else {
        return invalid_handle(function, "function", "cuFuncSetAttribute");
    };
    if attribute == MOST_DYNAMIC_SHARED {
        if !(0..=most).contains(&value) {
            return Status::InvalidValue;
        }
        module.shared = SHARED.max(value as usize);
    }
    Status::Success
}

#[unsafe(no_mangle)]
pub extern "C" fn cuFuncGetAttribute(value: Out<c_int>, _attribute: c_int, _function: u64) -> Status {
    value.put(0)
}

/// # Safety
/// `parameters` must point to a value for each parameter of the kernel.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuLaunchKernel(
    function: u64,
    grid_x: c_uint,
    grid_y: c_uint,
    grid_z: c_uint,
    block_x: c_uint,
    block_y: c_uint,
    block_z: c_uint,
    shared: c_uint,
    stream: u64,
    parameters: *const *const c_void,
    extra: *const c_void,
) -> Status {
    call("cuLaunchKernel", CallKind::Launch, |driver| {
        let stream = driver.stream(stream, "cuLaunchKernel")?;
        let module = driver.handles.modules.get(&function);
        let module = module.ok_or_else(|| invalid_handle(function, "function", "cuLaunchKernel"))?;
        require_same_device("a function", module.device, stream, "cuLaunchKernel")?;
        let (kernel, most_shared) = (module.kernel.clone(), module.shared);
        let grid = Dim { x: grid_x, y: grid_y, z: grid_z };
        let block = Dim { x: block_x, y: block_y, z: block_z };
        check_shape(&kernel.name, grid, block, (shared as usize, most_shared))?;
        if !extra.is_null() {
            return Err(Status::NotSupported);
        }

        let value = |(index, (_, size)): (usize, &(Parameter, usize))| {
            let mut lines = vec![Line::default(); size.div_ceil(size_of::<Line>()).max(1)];
            // SAFETY: promised by the caller; the lines have room for the value.
            unsafe {
                let value = *parameters.add(index);
                lines.as_mut_ptr().cast::<u8>().copy_from(value.cast(), *size);
            }
            lines
        };
        let arguments = kernel.parameters.iter().enumerate().map(value).collect();
        driver.launch_on(stream, Launch { kernel, grid, block, shared: shared as usize, arguments });
        Ok(())
    })
}

fn check_shape(
    name: &str,
    grid: Dim,
    block: Dim,
    (shared, most_shared): (usize, usize),
) -> Result<(), Status> {
    let fits = grid.count() > 0
        && grid.y.max(grid.z) <= 65535
        && (1..=1024).contains(&block.count())
        && block.z <= 64
        && shared <= most_shared;
    if fits {
        return Ok(());
    }
    let circumstances = format!(
        "kernel {name} over {} x {} x {} blocks of {} x {} x {} threads with {shared} bytes of shared memory, at most \
         {most_shared}",
        grid.x, grid.y, grid.z, block.x, block.y, block.z
    );
    Fault::new(Finding::LaunchRefused, circumstances).report();
    Err(Status::InvalidValue)
}

/// Assumed at most: a small kernel is not charged for a whole pool.
const BYTES_PER_THREAD: u64 = 64 << 10;

impl Driver {
    fn launch_on(&mut self, stream: Stream, launch: Launch) {
        let Stream { id, device, .. } = stream;
        let actor = format!("kernel {}", launch.kernel.name);
        let when = self.begin_work(id);
        let operands: Vec<(u64, bool)> = launch.operands().collect();
        for (address, writes) in &operands {
            self.touch(*address..*address + 1, *writes, when, &actor);
            require(self.device.check_device(*address, device, &actor));
        }
        let distinct: BTreeSet<u64> = operands.into_iter().map(|(address, _)| address).collect();
        let extents: u64 = distinct.into_iter().map(|operand| self.device.extent_of(operand)).sum();
        let threads = launch.grid.count().saturating_mul(launch.block.count());
        let touched = extents.min(threads.saturating_mul(BYTES_PER_THREAD));
        let Dim { x, y, z } = launch.grid;
        let shape = format!("{} over {x} x {y} x {z} blocks", launch.kernel.name);
        let (call, engine) = ("cuLaunchKernel", Engine::Compute);
        self.timeline.book(id, Task { call, name: &shape, engine, bytes: touched, touched, pageable: false });
        self.push(id, Work::Launch(launch));
    }
}
