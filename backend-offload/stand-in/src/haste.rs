//! `STAND_IN_HASTE`: a kernel that is launched again and again, as by autotune, computes once.

use std::{
    collections::HashMap,
    hint,
    sync::Arc,
    time::{Duration, Instant},
};

use crate::{fibers::Dim, kernels::Kernel};

#[derive(Debug)]
pub(crate) struct Haste {
    factor: u32,
    /// By the kernel's address.
    ran: HashMap<(usize, [Dim; 2]), Ran>,
    launches: u64,
}

/// A later launch is another step's, which may need the values.
const NEAR: u64 = 16;

#[derive(Debug)]
struct Ran {
    took: Duration,
    /// Number of its last launch.
    last: u64,
    /// No other kernel gets its address.
    _kernel: Arc<Kernel>,
}

impl Haste {
    pub(crate) fn new(factor: u32) -> Self {
        Self { factor, ran: HashMap::new(), launches: 0 }
    }

    pub(crate) fn run(&mut self, kernel: &Arc<Kernel>, shape: [Dim; 2], compute: impl FnOnce()) {
        if self.factor <= 1 {
            return compute();
        }
        let started = Instant::now();
        self.launches += 1;
        let number = self.launches;
        let key = (Arc::as_ptr(kernel).addr(), shape);
        if let Some(ran) = self.ran.get_mut(&key)
            && number - ran.last <= NEAR
        {
            ran.last = number;
            let until = ran.took / self.factor;
            while started.elapsed() < until {
                hint::spin_loop();
            }
            return;
        }
        compute();
        self.ran.insert(key, Ran { took: started.elapsed(), last: number, _kernel: kernel.clone() });
    }
}

#[cfg(test)]
mod tests {
    use std::{cell::Cell, thread};

    use super::*;
    use crate::kernels::Image;

    #[test]
    fn a_repeated_launch_computes_nothing_and_takes_a_part_of_its_time() {
        let image = Image::parse("// A kernel of the stand-in for CUDA\nuncompiled k\np\n").unwrap();
        let kernel = Arc::new(Kernel::load(&image).unwrap());
        let computed = Cell::new(0);
        let compute = || {
            computed.set(computed.get() + 1);
            thread::sleep(Duration::from_millis(80));
        };
        let shape = |x| [Dim { x, y: 1, z: 1 }; 2];
        let mut haste = Haste::new(4);
        haste.run(&kernel, shape(1), compute);
        let started = Instant::now();
        haste.run(&kernel, shape(1), compute);
        assert!(started.elapsed() >= Duration::from_millis(20));
        assert_eq!(computed.get(), 1);
        haste.run(&kernel, shape(2), compute);
        assert_eq!(computed.get(), 2, "another grid");
        (0..NEAR).for_each(|_| haste.run(&kernel, shape(2), || ()));
        haste.run(&kernel, shape(1), compute);
        assert_eq!(computed.get(), 3, "another step");
        let mut all = Haste::new(1);
        all.run(&kernel, shape(1), compute);
        all.run(&kernel, shape(1), compute);
        assert_eq!(computed.get(), 5);
    }
}
