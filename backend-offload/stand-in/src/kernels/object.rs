//! A compiled kernel: the text that replaces its PTX, and the loaded shared object.

use std::{
    ffi::{CStr, CString, c_char, c_void},
    path::PathBuf,
    ptr,
};

use crate::fibers::{KernelFn, Position, SERVICES, Services};

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Image {
    Compiled {
        object: PathBuf,
        places: Vec<u32>,
    },
    /// Nothing is computed.
    Uncompiled(Signature),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Signature {
    pub(super) name: String,
    pub(super) parameters: Vec<Parameter>,
}

const FIRST_LINE: &str = "// A kernel of the stand-in for CUDA";
const UNCOMPILED: &str = "uncompiled ";

impl Image {
    pub(crate) fn text(&self) -> String {
        let (first, second) = match self {
            Self::Compiled { object, places } => {
                (object.display().to_string(), places.iter().map(u32::to_string).collect::<Vec<_>>())
            }
            Self::Uncompiled(Signature { name, parameters }) => {
                (format!("{UNCOMPILED}{name}"), parameters.iter().map(|kind| kind.letter().into()).collect())
            }
        };
        format!("{FIRST_LINE}\n{first}\n{}\n", second.join(" "))
    }

    pub(crate) fn parse(text: &str) -> Option<Self> {
        let mut lines = text.lines();
        lines.next().filter(|line| *line == FIRST_LINE)?;
        let (first, second) = (lines.next()?, lines.next()?.split_whitespace());
        if let Some(name) = first.strip_prefix(UNCOMPILED) {
            let parameters = second.map(Parameter::of_letter).collect::<Option<_>>()?;
            return Some(Self::Uncompiled(Signature { name: name.to_owned(), parameters }));
        }
        let places = second.map(|place| place.parse().ok()).collect::<Option<_>>()?;
        Some(Self::Compiled { object: first.into(), places })
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Parameter {
    Value,
    Pointer,
    PointerToConst,
}

impl Parameter {
    fn letter(self) -> &'static str {
        match self {
            Self::Value => "v",
            Self::Pointer => "p",
            Self::PointerToConst => "c",
        }
    }

    fn of_letter(letter: &str) -> Option<Self> {
        [Self::Value, Self::Pointer, Self::PointerToConst].into_iter().find(|kind| kind.letter() == letter)
    }
}

/// `stand_in_object` of the device headers.
#[repr(C)]
struct Object {
    name: *const c_char,
    parameters: u32,
    waits: bool,
    sizes: *const u32,
    kinds: *const u8,
    shared: *mut u8,
    places: *mut u32,
    bind: unsafe extern "C" fn(*const Services) -> *mut Position,
    thread: KernelFn,
    grid: KernelFn,
}

#[derive(Debug)]
pub(crate) struct Kernel {
    pub(crate) name: String,
    /// With sizes in bytes.
    pub(crate) parameters: Vec<(Parameter, usize)>,
    pub(super) waits: bool,
    pub(super) position: *mut Position,
    /// Null without dynamic shared memory.
    pub(super) shared: *mut u8,
    pub(super) thread: KernelFn,
    pub(super) grid: KernelFn,
    places: Vec<u32>,
    places_in_object: *mut u32,
}

// SAFETY: the pointers lead into a shared object that is never unloaded, and kernels run under the driver's lock.
unsafe impl Send for Kernel {}
// SAFETY: as above.
unsafe impl Sync for Kernel {}

impl Kernel {
    pub(crate) fn load(image: &Image) -> Result<Self, String> {
        let (file, places) = match image {
            Image::Compiled { object, places } => (object, places),
            Image::Uncompiled(signature) => return Ok(Self::without_code(signature)),
        };
        let path = CString::new(file.to_string_lossy().as_bytes()).map_err(|error| error.to_string())?;
        // SAFETY: objects made by `compile` run nothing when loaded.
        let object = unsafe {
            let library = libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL);
            if library.is_null() {
                return Err(CStr::from_ptr(libc::dlerror()).to_string_lossy().into_owned());
            }
            libc::dlsym(library, c"stand_in_kernel".as_ptr()).cast::<Object>()
        };
        // SAFETY: the headers export this structure from every kernel, and the object stays loaded.
        let Some(object) = (unsafe { object.as_ref() }) else {
            return Err(format!("{} exports no kernel", file.display()));
        };

        let count = object.parameters as usize;
        // SAFETY: the object's own name and tables, one entry for each parameter.
        let (name, sizes, kinds) = unsafe {
            (
                CStr::from_ptr(object.name),
                std::slice::from_raw_parts(object.sizes, count),
                std::slice::from_raw_parts(object.kinds, count),
            )
        };

        let kind = |kind: &u8| match kind {
            1 => Parameter::Pointer,
            2 => Parameter::PointerToConst,
            _ => Parameter::Value,
        };
        Ok(Self {
            name: name.to_string_lossy().into_owned(),
            parameters: kinds.iter().map(kind).zip(sizes.iter().map(|size| *size as usize)).collect(),
            waits: object.waits,
            // SAFETY: gives the services to the object; its position is its own variable.
            position: unsafe { (object.bind)(&raw const SERVICES) },
            shared: object.shared,
            thread: object.thread,
            grid: object.grid,
            places: places.clone(),
            places_in_object: object.places,
        })
    }

    fn without_code(Signature { name, parameters }: &Signature) -> Self {
        unsafe extern "C" fn nothing(_: *mut *mut c_void) {}
        let size = |kind: &Parameter| if *kind == Parameter::Value { 0 } else { size_of::<u64>() };
        Self {
            name: name.clone(),
            parameters: parameters.iter().map(|kind| (*kind, size(kind))).collect(),
            waits: false,
            position: ptr::null_mut(),
            shared: ptr::null_mut(),
            thread: nothing,
            grid: nothing,
            places: Vec::new(),
            places_in_object: ptr::null_mut(),
        }
    }

    /// Modules of one object may differ in offsets.
    pub(super) fn put_places(&self) {
        // SAFETY: the object was compiled for as many places as its image lists.
        unsafe { self.places_in_object.copy_from(self.places.as_ptr(), self.places.len()) }
    }

    /// # Safety
    /// `arguments` must point to a value for each parameter, and `run` must be a function of the kernel.
    pub(super) unsafe fn call(run: KernelFn, arguments: *mut *mut c_void) {
        // SAFETY: promised by the caller.
        unsafe { run(arguments) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_written_as_ptx_is_read_back_whole() {
        for places in [vec![], vec![0, 64, 16]] {
            let image = Image::Compiled { object: "/a b/c.so".into(), places };
            assert_eq!(Image::parse(&image.text()), Some(image));
        }
        let parameters = vec![Parameter::Pointer, Parameter::PointerToConst, Parameter::Value];
        for parameters in [vec![], parameters] {
            let image = Image::Uncompiled(Signature { name: "k".to_owned(), parameters });
            assert_eq!(Image::parse(&image.text()), Some(image));
        }
        assert_eq!(Image::parse(".version 8.0\n.target sm_70\n"), None);
    }
}
