//! Wrappers of the C functions for scenarios.

use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};

// Linked for its C functions.
use stand_in as _;

pub(crate) const INVALID_VALUE: c_int = 1;
pub(crate) const OUT_OF_MEMORY: c_int = 2;
pub(crate) const INVALID_CONTEXT: c_int = 201;
pub(crate) const ECC_UNCORRECTABLE: c_int = 214;
pub(crate) const INVALID_HANDLE: c_int = 400;
pub(crate) const NOT_READY: c_int = 600;

unsafe extern "C" {
    fn cuInit(flags: c_uint) -> c_int;
    fn cuDevicePrimaryCtxRetain(context: *mut u64, device: c_int) -> c_int;
    fn cuCtxSetCurrent(context: u64) -> c_int;
    fn cuMemGetInfo_v2(free: *mut usize, total: *mut usize) -> c_int;
    fn cuMemAllocAsync(out: *mut u64, size: usize, stream: u64) -> c_int;
    fn cuMemFreeAsync(start: u64, stream: u64) -> c_int;
    fn cuDeviceGetDefaultMemPool(pool: *mut u64, device: c_int) -> c_int;
    fn cuMemPoolSetAttribute(pool: u64, attribute: c_int, value: *const u64) -> c_int;
    fn cuMemPoolTrimTo(pool: u64, mapped: usize) -> c_int;
    fn cuMemHostAlloc(out: *mut *mut c_void, size: usize, flags: c_uint) -> c_int;
    fn cuMemFreeHost(start: *mut c_void) -> c_int;
    fn cuMemcpyHtoDAsync_v2(to: u64, from: *const c_void, size: usize, stream: u64) -> c_int;
    fn cuMemcpyDtoHAsync_v2(to: *mut c_void, from: u64, size: usize, stream: u64) -> c_int;
    fn cuMemcpyDtoDAsync_v2(to: u64, from: u64, size: usize, stream: u64) -> c_int;
    fn cuMemcpyHtoD_v2(to: u64, from: *const c_void, size: usize) -> c_int;
    fn cuMemsetD8Async(to: u64, value: u8, size: usize, stream: u64) -> c_int;
    fn cuMemcpy2DAsync_v2(copy: *const Pitched, stream: u64) -> c_int;
    fn cuStreamCreate(stream: *mut u64, flags: c_uint) -> c_int;
    fn cuStreamDestroy_v2(stream: u64) -> c_int;
    fn cuStreamSynchronize(stream: u64) -> c_int;
    fn cuStreamQuery(stream: u64) -> c_int;
    fn cuEventCreate(event: *mut u64, flags: c_uint) -> c_int;
    fn cuEventDestroy_v2(event: u64) -> c_int;
    fn cuEventRecord(event: u64, stream: u64) -> c_int;
    fn cuStreamWaitEvent(stream: u64, event: u64, flags: c_uint) -> c_int;
    fn cuEventSynchronize(event: u64) -> c_int;
    fn cuEventQuery(event: u64) -> c_int;
    fn cuEventElapsedTime(milliseconds: *mut f32, start: u64, end: u64) -> c_int;
    fn cuModuleLoadData(module: *mut u64, image: *const c_char) -> c_int;
    fn cuModuleGetFunction(function: *mut u64, module: u64, name: *const c_char) -> c_int;
    fn cuFuncSetAttribute(function: u64, attribute: c_int, value: c_int) -> c_int;
    fn cuLaunchKernel(
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
    ) -> c_int;
    fn cuTensorMapEncodeTiled(
        map: *mut TensorMap,
        element: c_int,
        rank: c_uint,
        address: u64,
        sizes: *const u64,
        strides: *const u64,
        boxes: *const c_uint,
        steps: *const c_uint,
        interleave: c_int,
        swizzle: c_int,
        promotion: c_int,
        fill: c_int,
    ) -> c_int;
    fn cuTensorMapEncodeIm2col(
        map: *mut TensorMap,
        element: c_int,
        rank: c_uint,
        address: u64,
        sizes: *const u64,
        strides: *const u64,
        lower: *const c_int,
        upper: *const c_int,
        channels: c_uint,
        pixels: c_uint,
        steps: *const c_uint,
        interleave: c_int,
        swizzle: c_int,
        promotion: c_int,
        fill: c_int,
    ) -> c_int;
    fn nvrtcCreateProgram(
        program: *mut u64,
        source: *const c_char,
        name: *const c_char,
        headers: c_int,
        texts: *const *const c_char,
        names: *const *const c_char,
    ) -> c_int;
    fn nvrtcDestroyProgram(program: *mut u64) -> c_int;
    fn nvrtcCompileProgram(program: u64, count: c_int, options: *const *const c_char) -> c_int;
    fn nvrtcGetProgramLogSize(program: u64, size: *mut usize) -> c_int;
    fn nvrtcGetProgramLog(program: u64, log: *mut c_char) -> c_int;
    fn nvrtcGetPTXSize(program: u64, size: *mut usize) -> c_int;
    fn nvrtcGetPTX(program: u64, ptx: *mut c_char) -> c_int;
}

#[repr(C)]
pub(crate) struct Pitched {
    pub(crate) from: Side,
    pub(crate) to: Side,
    pub(crate) width: usize,
    pub(crate) height: usize,
}

#[repr(C)]
#[derive(Default)]
pub(crate) struct Side {
    pub(crate) x: usize,
    pub(crate) y: usize,
    pub(crate) kind: c_uint,
    pub(crate) host: u64,
    pub(crate) device: u64,
    pub(crate) array: usize,
    pub(crate) pitch: usize,
}

#[repr(C, align(64))]
#[derive(Default)]
pub(crate) struct TensorMap(pub(crate) [u32; 32]);

/// Row-major; the first dimension is the innermost.
pub(crate) struct Mapped<'a> {
    pub(crate) element: c_int,
    pub(crate) bytes: u64,
    pub(crate) sizes: &'a [u64],
    pub(crate) steps: &'a [u32],
    pub(crate) swizzle: c_int,
    pub(crate) nan: bool,
}

impl Mapped<'_> {
    fn strides(&self) -> Vec<u64> {
        let mut stride = self.bytes;
        let outer = self.sizes[..self.sizes.len() - 1].iter();
        outer
            .map(|size| {
                stride *= size;
                stride
            })
            .collect()
    }
}

pub(crate) enum Argument<'a> {
    Device(u64),
    Int(i32),
    Float(f32),
    Words(&'a [u32]),
}

#[track_caller]
fn succeed(status: c_int) {
    assert_eq!(status, 0);
}

fn output<T: Default>(make: impl FnOnce(*mut T) -> c_int) -> T {
    let mut value = T::default();
    succeed(make(&raw mut value));
    value
}

pub(crate) struct Cuda;

// SAFETY of every call below: handles come from the stand-in, and lengths are those of the slices. It must detect the
// scenarios' deliberate errors.
#[expect(clippy::undocumented_unsafe_blocks, reason = "one reason for all of them, above")]
#[expect(clippy::unused_self, reason = "a `Cuda` exists only after the driver has started")]
impl Cuda {
    pub(crate) fn start() -> Self {
        let cuda = Self::start_without_context();
        cuda.use_device(0);
        cuda
    }

    pub(crate) fn start_without_context() -> Self {
        succeed(unsafe { cuInit(0) });
        Self
    }

    /// From here on, in this thread.
    pub(crate) fn use_device(&self, device: c_int) {
        let context = output(|context| unsafe { cuDevicePrimaryCtxRetain(context, device) });
        succeed(unsafe { cuCtxSetCurrent(context) });
    }

    pub(crate) fn free_memory(&self) -> usize {
        let mut total = 0;
        output(|free| unsafe { cuMemGetInfo_v2(free, &raw mut total) })
    }

    pub(crate) fn set_release_threshold(&self, bytes: u64) {
        let pool = output(|pool| unsafe { cuDeviceGetDefaultMemPool(pool, 0) });
        succeed(unsafe { cuMemPoolSetAttribute(pool, 4, &raw const bytes) });
    }

    pub(crate) fn trim_pool(&self) {
        let pool = output(|pool| unsafe { cuDeviceGetDefaultMemPool(pool, 0) });
        succeed(unsafe { cuMemPoolTrimTo(pool, 0) });
    }

    pub(crate) fn stream(&self) -> u64 {
        self.try_stream().unwrap()
    }

    pub(crate) fn try_stream(&self) -> Result<u64, c_int> {
        let mut stream = 0;
        match unsafe { cuStreamCreate(&raw mut stream, 1) } {
            0 => Ok(stream),
            status => Err(status),
        }
    }

    pub(crate) fn blocking_stream(&self) -> u64 {
        output(|stream| unsafe { cuStreamCreate(stream, 0) })
    }

    pub(crate) fn destroy_stream(&self, stream: u64) {
        succeed(unsafe { cuStreamDestroy_v2(stream) });
    }

    pub(crate) fn allocate(&self, size: usize, stream: u64) -> u64 {
        self.try_allocate(size, stream).unwrap()
    }

    pub(crate) fn try_allocate(&self, size: usize, stream: u64) -> Result<u64, c_int> {
        let mut out = 0;
        match unsafe { cuMemAllocAsync(&raw mut out, size, stream) } {
            0 => Ok(out),
            status => Err(status),
        }
    }

    pub(crate) fn free(&self, start: u64, stream: u64) {
        succeed(unsafe { cuMemFreeAsync(start, stream) });
    }

    /// Valid until the scenario frees them.
    pub(crate) fn pinned<T>(&self, count: usize) -> &'static mut [T] {
        self.try_pinned(count).unwrap()
    }

    pub(crate) fn try_pinned<T>(&self, count: usize) -> Result<&'static mut [T], c_int> {
        let mut start = std::ptr::null_mut();
        match unsafe { cuMemHostAlloc(&raw mut start, count * size_of::<T>(), 0) } {
            0 => Ok(unsafe { std::slice::from_raw_parts_mut(start.cast(), count) }),
            status => Err(status),
        }
    }

    pub(crate) fn free_pinned<T>(&self, start: *mut T) {
        succeed(self.try_free_pinned(start));
    }

    pub(crate) fn try_free_pinned<T>(&self, start: *mut T) -> c_int {
        unsafe { cuMemFreeHost(start.cast()) }
    }

    pub(crate) fn upload<T>(&self, to: u64, from: &[T], stream: u64) {
        succeed(unsafe { cuMemcpyHtoDAsync_v2(to, from.as_ptr().cast(), size_of_val(from), stream) });
    }

    pub(crate) fn upload_and_wait<T>(&self, to: u64, from: &[T]) {
        succeed(unsafe { cuMemcpyHtoD_v2(to, from.as_ptr().cast(), size_of_val(from)) });
    }

    pub(crate) fn download<T>(&self, to: &mut [T], from: u64, stream: u64) {
        succeed(self.try_download(to, from, stream));
    }

    pub(crate) fn try_download<T>(&self, to: &mut [T], from: u64, stream: u64) -> c_int {
        unsafe { cuMemcpyDtoHAsync_v2(to.as_mut_ptr().cast(), from, size_of_val(to), stream) }
    }

    pub(crate) fn move_within(&self, to: u64, from: u64, size: usize, stream: u64) {
        succeed(unsafe { cuMemcpyDtoDAsync_v2(to, from, size, stream) });
    }

    pub(crate) fn copy_rows(&self, copy: &Pitched, stream: u64) {
        succeed(unsafe { cuMemcpy2DAsync_v2(copy, stream) });
    }

    pub(crate) fn fill(&self, to: u64, value: u8, size: usize, stream: u64) {
        succeed(unsafe { cuMemsetD8Async(to, value, size, stream) });
    }

    pub(crate) fn synchronize(&self, stream: u64) {
        succeed(self.try_synchronize(stream));
    }

    pub(crate) fn try_synchronize(&self, stream: u64) -> c_int {
        unsafe { cuStreamSynchronize(stream) }
    }

    pub(crate) fn query(&self, stream: u64) -> c_int {
        unsafe { cuStreamQuery(stream) }
    }

    pub(crate) fn record(&self, stream: u64) -> u64 {
        let event = self.try_event().unwrap();
        succeed(self.try_record(event, stream));
        event
    }

    pub(crate) fn try_event(&self) -> Result<u64, c_int> {
        let mut event = 0;
        match unsafe { cuEventCreate(&raw mut event, 2) } {
            0 => Ok(event),
            status => Err(status),
        }
    }

    pub(crate) fn try_record(&self, event: u64, stream: u64) -> c_int {
        unsafe { cuEventRecord(event, stream) }
    }

    pub(crate) fn destroy_event(&self, event: u64) {
        succeed(unsafe { cuEventDestroy_v2(event) });
    }

    pub(crate) fn wait_for_event(&self, event: u64) {
        succeed(self.try_wait_for_event(event));
    }

    pub(crate) fn try_wait_for_event(&self, event: u64) -> c_int {
        unsafe { cuEventSynchronize(event) }
    }

    pub(crate) fn query_event(&self, event: u64) -> c_int {
        unsafe { cuEventQuery(event) }
    }

    /// Simulated milliseconds between two events.
    pub(crate) fn elapsed(&self, start: u64, end: u64) -> f32 {
        output(|milliseconds| unsafe { cuEventElapsedTime(milliseconds, start, end) })
    }

    pub(crate) fn order_after_event(&self, event: u64, later: u64) {
        succeed(unsafe { cuStreamWaitEvent(later, event, 0) });
    }

    pub(crate) fn order(&self, earlier: u64, later: u64) {
        let event = self.record(earlier);
        self.order_after_event(event, later);
        self.destroy_event(event);
    }

    pub(crate) fn tiles(&self, of: &Mapped, address: u64, boxes: &[u32]) -> Result<TensorMap, c_int> {
        let mut map = TensorMap::default();
        let (rank, strides) = (of.sizes.len() as c_uint, of.strides());
        let status = unsafe {
            cuTensorMapEncodeTiled(
                &raw mut map,
                of.element,
                rank,
                address,
                of.sizes.as_ptr(),
                strides.as_ptr(),
                boxes.as_ptr(),
                of.steps.as_ptr(),
                0,
                of.swizzle,
                0,
                of.nan.into(),
            )
        };
        if status == 0 { Ok(map) } else { Err(status) }
    }

    pub(crate) fn columns(
        &self,
        of: &Mapped,
        address: u64,
        corners: [&[c_int]; 2],
        (channels, pixels): (u32, u32),
    ) -> TensorMap {
        let (rank, strides) = (of.sizes.len() as c_uint, of.strides());
        output(|map| unsafe {
            cuTensorMapEncodeIm2col(
                map,
                of.element,
                rank,
                address,
                of.sizes.as_ptr(),
                strides.as_ptr(),
                corners[0].as_ptr(),
                corners[1].as_ptr(),
                channels,
                pixels,
                of.steps.as_ptr(),
                0,
                of.swizzle,
                0,
                of.nan.into(),
            )
        })
    }

    pub(crate) fn kernel(&self, source: &str, name: &str) -> u64 {
        let include = concat!(env!("CARGO_MANIFEST_DIR"), "/include");
        let ptx = self.compile(source, include).unwrap_or_else(|log| panic!("{log}"));
        let module = output(|module| unsafe { cuModuleLoadData(module, ptx.as_ptr()) });
        let name = CString::new(name).unwrap();
        output(|function| unsafe { cuModuleGetFunction(function, module, name.as_ptr()) })
    }

    pub(crate) fn compile(&self, source: &str, include: &str) -> Result<CString, String> {
        let source = CString::new(source).unwrap();
        let options = ["--gpu-architecture=sm_70".to_owned(), format!("--include-path={include}")];
        let options = options.map(|option| CString::new(option).unwrap());
        let pointers = options.each_ref().map(|option| option.as_ptr());
        let (none, null) = (std::ptr::null(), std::ptr::null());
        let mut program =
            output(|program| unsafe { nvrtcCreateProgram(program, source.as_ptr(), null, 0, none, none) });
        let text = |size: usize, get: &dyn Fn(*mut c_char) -> c_int| {
            let mut bytes = vec![0_u8; size];
            succeed(get(bytes.as_mut_ptr().cast()));
            CStr::from_bytes_with_nul(&bytes).unwrap().to_owned()
        };
        let compiled = if unsafe { nvrtcCompileProgram(program, 2, pointers.as_ptr()) } == 0 {
            let size = output(|size| unsafe { nvrtcGetPTXSize(program, size) });
            Ok(text(size, &|ptx| unsafe { nvrtcGetPTX(program, ptx) }))
        } else {
            let size = output(|size| unsafe { nvrtcGetProgramLogSize(program, size) });
            Err(text(size, &|log| unsafe { nvrtcGetProgramLog(program, log) }).into_string().unwrap())
        };
        succeed(unsafe { nvrtcDestroyProgram(&raw mut program) });
        compiled
    }

    /// Most bytes of dynamic shared memory in a launch.
    pub(crate) fn permit_shared(&self, kernel: u64, bytes: c_int) -> c_int {
        unsafe { cuFuncSetAttribute(kernel, 8, bytes) }
    }

    /// Blocks, threads, and bytes of dynamic shared memory.
    pub(crate) fn launch(&self, kernel: u64, shape: (u32, u32, u32), stream: u64, arguments: &[Argument]) {
        succeed(self.try_launch(kernel, shape, stream, arguments));
    }

    pub(crate) fn try_launch(
        &self,
        kernel: u64,
        (blocks, threads, shared): (u32, u32, u32),
        stream: u64,
        arguments: &[Argument],
    ) -> c_int {
        let pointers: Vec<*const c_void> = arguments
            .iter()
            .map(|argument| match argument {
                Argument::Device(address) => std::ptr::from_ref(address).cast(),
                Argument::Int(number) => std::ptr::from_ref(number).cast(),
                Argument::Float(number) => std::ptr::from_ref(number).cast(),
                Argument::Words(words) => words.as_ptr().cast(),
            })
            .collect();
        let none = std::ptr::null();
        unsafe {
            cuLaunchKernel(kernel, blocks, 1, 1, threads, 1, 1, shared, stream, pointers.as_ptr(), none)
        }
    }
}
