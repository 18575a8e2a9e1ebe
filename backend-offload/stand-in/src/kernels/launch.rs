//! Launches: a kernel with arguments and grid.

use std::{ffi::c_void, sync::Arc, time::Instant};

use super::object::{Kernel, Parameter};
use crate::{
    fibers::{Dim, Fibers},
    report,
};

#[derive(Debug)]
pub(crate) struct Launch {
    pub(crate) kernel: Arc<Kernel>,
    pub(crate) grid: Dim,
    pub(crate) block: Dim,
    pub(crate) shared: usize,
    /// Copied at the call.
    pub(crate) arguments: Vec<Vec<Line>>,
}

/// Aligned as a tensor map.
#[repr(align(64))]
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Line(pub(crate) [u64; 8]);

/// On a GPU, too, shared memory begins with no useful number.
const SHARED_POISON: u8 = 0xFF;

impl Launch {
    /// Addresses, and whether the kernel may write there.
    pub(crate) fn operands(&self) -> impl Iterator<Item = (u64, bool)> {
        let parameters = self.kernel.parameters.iter().zip(&self.arguments);
        parameters
            .filter(|((kind, _), _)| *kind != Parameter::Value)
            .map(|((kind, _), argument)| (argument[0].0[0], *kind == Parameter::Pointer))
    }

    /// The operands must be live device memory.
    pub(crate) fn run(&mut self, fibers: &mut Fibers) {
        let started = Instant::now();
        let Self { kernel, grid, block, shared, arguments } = self;
        let mut pointers: Vec<*mut c_void> =
            arguments.iter_mut().map(|argument| argument.as_mut_ptr().cast()).collect();
        kernel.put_places();
        // SAFETY: the position is a variable of the kernel's object, and kernels run one at a time.
        let position = unsafe {
            (*kernel.position).grid_dim = *grid;
            (*kernel.position).block_dim = *block;
            &raw mut (*kernel.position).block
        };

        if kernel.waits {
            for block in blocks(*grid) {
                // SAFETY: as above; the shared memory is as large as any launch may request.
                unsafe {
                    *position = block;
                    (*kernel.position).serial += 1;
                    if !kernel.shared.is_null() {
                        kernel.shared.write_bytes(SHARED_POISON, *shared);
                    }
                    fibers.run(kernel.thread, pointers.as_mut_ptr(), kernel.position);
                }
            }
        } else {
            // SAFETY: one argument for each parameter, of its size.
            unsafe { Kernel::call(kernel.grid, pointers.as_mut_ptr()) }
        }

        report::count(|counters| {
            counters.kernels.run += 1;
            counters.kernels.run_seconds += started.elapsed().as_secs_f64();
        });
    }
}

fn blocks(grid: Dim) -> impl Iterator<Item = Dim> {
    let plane = move |z| (0..grid.y).flat_map(move |y| (0..grid.x).map(move |x| Dim { x, y, z }));
    (0..grid.z).flat_map(plane)
}
