//! Open MPI's library, loaded on demand, without headers or a C compiler.
//!
//! Open MPI 4 and 5 share one binary interface, `libmpi.so.40`, whose handles are addresses of symbols. MPICH's are
//! numbers, and mixing them ends the process, so MPICH is refused by name.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::mem::ManuallyDrop;
use std::time::Duration;

use libloading::os::unix::{Library as Loaded, RTLD_GLOBAL, RTLD_NOW, Symbol};

use crate::error::{Error, Result};

pub(super) const NAME: &str = "libmpi.so.40";

/// Any thread may call, one at a time.
const THREAD_SERIALIZED: c_int = 2;

pub(super) type Handle = *mut c_void;

/// `MPI_Status` of Open MPI 4 and 5.
#[repr(C)]
#[derive(Default)]
pub(super) struct Status {
    source: c_int,
    tag: c_int,
    error: c_int,
    cancelled: c_int,
    bytes: usize,
}

type Asks = unsafe extern "C" fn(Handle, c_int) -> c_int;
type Asked = unsafe extern "C" fn(Handle, *mut c_int) -> c_int;
type Transfer<P> = unsafe extern "C" fn(P, c_int, Handle, c_int, c_int, Handle, *mut Handle) -> c_int;

/// Ends the job from a thread that does not own the engine.
pub(super) struct Abort {
    call: Asks,
    world: Handle,
}

// SAFETY: the handle is an address in the library and belongs to no thread.
unsafe impl Send for Abort {}

impl Abort {
    pub(super) fn end_the_job(&self) -> ! {
        // Another thread, because the abort may wait for a frozen rank.
        std::thread::spawn(|| {
            std::thread::sleep(Duration::from_secs(10));
            std::process::abort();
        });
        // SAFETY: the world's communicator lives as long as the process. The engine's thread may be within MPI, which
        // the thread level forbids for calls that return; this one does not.
        unsafe { (self.call)(self.world, 1) };
        std::process::abort();
    }
}

/// Functions and handles. Never unloaded: MPI's threads and handlers point into the library.
pub(super) struct Library {
    _loaded: ManuallyDrop<Loaded>,
    pub(super) version: String,
    pub(super) rank: Asked,
    pub(super) size: Asked,
    pub(super) send: Transfer<*const c_void>,
    pub(super) receive: Transfer<*mut c_void>,
    pub(super) test: unsafe extern "C" fn(*mut Handle, *mut c_int, *mut Status) -> c_int,
    pub(super) count: unsafe extern "C" fn(*const Status, Handle, *mut c_int) -> c_int,
    pub(super) finalize: unsafe extern "C" fn() -> c_int,
    abort: Asks,
    set_errhandler: unsafe extern "C" fn(Handle, Handle) -> c_int,
    error_class: unsafe extern "C" fn(c_int, *mut c_int) -> c_int,
    error_string: unsafe extern "C" fn(c_int, *mut c_char, *mut c_int) -> c_int,
    initialized: unsafe extern "C" fn(*mut c_int) -> c_int,
    init_thread: unsafe extern "C" fn(*mut c_int, *mut c_void, c_int, *mut c_int) -> c_int,
    /// User-level failure mitigation: Open MPI 5 or later, if the launcher switched it on.
    pub(super) ulfm: Option<Ulfm>,
    pub(super) world: Handle,
    pub(super) byte: Handle,
    errors_return: Handle,
}

#[derive(Clone, Copy)]
pub(super) struct Ulfm {
    pub(super) revoke: unsafe extern "C" fn(Handle) -> c_int,
    pub(super) shrink: unsafe extern "C" fn(Handle, *mut Handle) -> c_int,
    pub(super) agree: Asked,
}

/// Whether the launcher has switched survival on (`mpirun --with-ft ulfm`). Otherwise the functions exist, but
/// `MPIX_Comm_shrink` does not return.
fn survival_is_on() -> bool {
    let value = std::env::var("OMPI_MCA_mpi_ft_enable").unwrap_or_default();
    ["1", "true", "yes", "enabled"].contains(&value.to_ascii_lowercase().as_str())
}

impl Library {
    /// Refuses any MPI but Open MPI; starts nothing.
    pub(super) fn load(name: &str) -> Result<Self> {
        // SAFETY: constructors of Open MPI touch nothing of this program. Global, because its plugins look for its
        // symbols.
        let loaded = unsafe { Loaded::open(Some(name), RTLD_NOW | RTLD_GLOBAL) };
        let loaded =
            loaded.map_err(|error| Error::Missing { name: name.into(), reason: error.to_string() })?;
        Self::bind(loaded, name)
            .map_err(|error| Error::NotOpenMpi {
                name: name.into(),
                found: format!("not Open MPI, or not version 4 or 5 of it ({error})"),
            })?
            .checked(name)
    }

    fn bind(loaded: Loaded, name: &str) -> std::result::Result<Self, libloading::Error> {
        fn handle(loaded: &Loaded, symbol: &[u8]) -> std::result::Result<Handle, libloading::Error> {
            // SAFETY: only the symbol's address is taken.
            let symbol: Symbol<*mut c_void> = unsafe { loaded.get(symbol) }?;
            Ok(symbol.into_raw())
        }

        // A handle first: every MPI has functions of these names.
        let world = handle(&loaded, b"ompi_mpi_comm_world")?;
        // SAFETY: every type above is that of the function's declaration in Open MPI's `mpi.h`. The library is never
        // unloaded, so functions stay callable.
        unsafe {
            let version: Symbol<unsafe extern "C" fn(*mut c_char, *mut c_int) -> c_int> =
                loaded.get(b"MPI_Get_library_version")?;
            // MPI_MAX_LIBRARY_VERSION_STRING is 256.
            let (mut text, mut len) = ([0; 512], 0);
            let code = version(text.as_mut_ptr(), &raw mut len);
            let version = CStr::from_ptr(text.as_ptr()).to_string_lossy();
            let version = match code {
                0 => version.split(',').next().unwrap_or(name).to_owned(),
                code => format!("a library that does not tell its version (error {code})"),
            };
            let ulfm = match (
                loaded.get(b"MPIX_Comm_revoke"),
                loaded.get(b"MPIX_Comm_shrink"),
                loaded.get(b"MPIX_Comm_agree"),
            ) {
                (Ok(revoke), Ok(shrink), Ok(agree)) if survival_is_on() => {
                    Some(Ulfm { revoke: *revoke, shrink: *shrink, agree: *agree })
                }
                _ => None,
            };
            Ok(Self {
                version,
                rank: *loaded.get(b"MPI_Comm_rank")?,
                size: *loaded.get(b"MPI_Comm_size")?,
                send: *loaded.get(b"MPI_Isend")?,
                receive: *loaded.get(b"MPI_Irecv")?,
                test: *loaded.get(b"MPI_Test")?,
                count: *loaded.get(b"MPI_Get_count")?,
                finalize: *loaded.get(b"MPI_Finalize")?,
                abort: *loaded.get(b"MPI_Abort")?,
                set_errhandler: *loaded.get(b"MPI_Comm_set_errhandler")?,
                error_class: *loaded.get(b"MPI_Error_class")?,
                error_string: *loaded.get(b"MPI_Error_string")?,
                initialized: *loaded.get(b"MPI_Initialized")?,
                init_thread: *loaded.get(b"MPI_Init_thread")?,
                ulfm,
                world,
                byte: handle(&loaded, b"ompi_mpi_byte")?,
                errors_return: handle(&loaded, b"ompi_mpi_errors_return")?,
                _loaded: ManuallyDrop::new(loaded),
            })
        }
    }

    fn checked(self, name: &str) -> Result<Self> {
        if self.version.starts_with("Open MPI") {
            return Ok(self);
        }
        Err(Error::NotOpenMpi { name: name.into(), found: self.version })
    }

    /// Once per process: MPI cannot start again after its end.
    pub(super) fn start(&self) -> Result<()> {
        let (mut started, mut provided) = (0, 0);
        // SAFETY: allowed at any time; writes one integer.
        let code = unsafe { (self.initialized)(&raw mut started) };
        if code != 0 {
            return Err(Error::Start { reason: format!("MPI_Initialized: {}", self.text(code)) });
        }

        if started != 0 {
            return Err(Error::Start { reason: "it has been started before, and can be only once".into() });
        }

        // SAFETY: called once; null stands for absent arguments.
        let code = unsafe {
            (self.init_thread)(
                std::ptr::null_mut(),
                std::ptr::null_mut(),
                THREAD_SERIALIZED,
                &raw mut provided,
            )
        };
        if code != 0 || provided < THREAD_SERIALIZED {
            let reason = format!("MPI_Init_thread returns {code} and thread level {provided} of 2 or more");
            return Err(Error::Start { reason });
        }
        self.return_errors(self.world)
    }

    pub(super) fn abort(&self) -> Abort {
        Abort { call: self.abort, world: self.world }
    }

    pub(super) fn return_errors(&self, communicator: Handle) -> Result<()> {
        // SAFETY: both handles are alive.
        let code = unsafe { (self.set_errhandler)(communicator, self.errors_return) };
        if code == 0 {
            return Ok(());
        }
        Err(Error::Start { reason: format!("MPI_Comm_set_errhandler: {}", self.text(code)) })
    }

    pub(super) fn text(&self, code: c_int) -> String {
        // MPI_MAX_ERROR_STRING is 256.
        let (mut text, mut len) = ([0; 512], 0);
        // SAFETY: writes a text that ends with zero, shorter than the buffer.
        let unknown = unsafe { (self.error_string)(code, text.as_mut_ptr(), &raw mut len) } != 0;
        if unknown {
            return format!("error {code}");
        }
        // SAFETY: zeroed before, so it ends with zero even if nothing was written.
        unsafe { CStr::from_ptr(text.as_ptr()) }.to_string_lossy().into_owned()
    }

    /// `None` for unknown codes. A class is the same in every call.
    pub(super) fn class(&self, code: c_int) -> Option<c_int> {
        let mut class = 0;
        // SAFETY: writes one integer.
        let known = unsafe { (self.error_class)(code, &raw mut class) } == 0;
        known.then_some(class)
    }
}

/// A library that sends and receives at once and fails in everything else.
#[cfg(test)]
pub(super) mod failing {
    use super::*;

    pub(in crate::mpi) const CODE: c_int = 13;

    unsafe extern "C" fn asks(_: Handle, _: c_int) -> c_int {
        CODE
    }
    unsafe extern "C" fn asked(_: Handle, _: *mut c_int) -> c_int {
        CODE
    }
    unsafe extern "C" fn moved<P>(
        _: P,
        _: c_int,
        _: Handle,
        _: c_int,
        _: c_int,
        _: Handle,
        _: *mut Handle,
    ) -> c_int {
        0
    }
    unsafe extern "C" fn test(_: *mut Handle, ended: *mut c_int, _: *mut Status) -> c_int {
        // SAFETY: the caller gives one integer to be written.
        unsafe { *ended = 1 };
        0
    }
    unsafe extern "C" fn count(_: *const Status, _: Handle, _: *mut c_int) -> c_int {
        CODE
    }
    unsafe extern "C" fn none() -> c_int {
        CODE
    }
    unsafe extern "C" fn handled(_: Handle, _: Handle) -> c_int {
        CODE
    }
    unsafe extern "C" fn class(_: c_int, _: *mut c_int) -> c_int {
        CODE
    }
    unsafe extern "C" fn text(_: c_int, _: *mut c_char, _: *mut c_int) -> c_int {
        CODE
    }
    unsafe extern "C" fn flag(_: *mut c_int) -> c_int {
        CODE
    }
    unsafe extern "C" fn init(_: *mut c_int, _: *mut c_void, _: c_int, _: *mut c_int) -> c_int {
        CODE
    }

    pub(in crate::mpi) fn library() -> Library {
        Library {
            _loaded: ManuallyDrop::new(Loaded::this()),
            version: "Open MPI v0".into(),
            rank: asked,
            size: asked,
            send: moved::<*const c_void>,
            receive: moved::<*mut c_void>,
            test,
            count,
            finalize: none,
            abort: asks,
            set_errhandler: handled,
            error_class: class,
            error_string: text,
            initialized: flag,
            init_thread: init,
            ulfm: None,
            world: std::ptr::null_mut(),
            byte: std::ptr::null_mut(),
            errors_return: std::ptr::null_mut(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_that_cannot_tell_whether_it_has_started_is_not_started() {
        let error = failing::library().start().expect_err("it cannot tell").to_string();
        assert_eq!(error, "MPI cannot be started: MPI_Initialized: error 13");
    }

    #[test]
    fn a_missing_library_is_an_error_that_says_what_to_install() {
        let error = Library::load("libmpi-that-is-not-there.so.40").err().expect("not there").to_string();
        assert!(error.contains("libmpi-that-is-not-there.so.40 cannot be loaded"), "{error}");
        assert!(error.contains("apt-get install openmpi-bin libopenmpi3"), "{error}");
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_library_without_open_mpis_handles_is_refused_by_name() {
        let error = Library::load("libc.so.6").err().expect("no MPI at all").to_string();
        assert!(error.starts_with("libc.so.6 is not Open MPI") && error.contains("openmpi-bin"), "{error}");
    }
}
