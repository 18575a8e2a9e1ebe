//! Launches of a loaded kernel that CUDA refuses, on its stand-in.

use super::{Machine, Plain, Target, children};
use crate::child::Facts;
use crate::stand_in::run_and_report;
use backend_offload::{OffloadConfig, OffloadRuntime, stats};
use cubecl_common::future::block_on;
use cubecl_core as cubecl;
use cubecl_core::prelude::*;
use cubecl_core::server::Handle;

children! { "cube/refused grids" => refused_grids }

#[cube(launch)]
fn touch(input: &Array<f32>, output: &mut Array<f32>) {
    if ABSOLUTE_POS == 0 {
        output[0] = input[0] + 1.0;
    }
}

const LEN: usize = 32 << 10;

fn refused_grids<T: Target>(_: &Facts) -> Facts {
    let device = T::device();
    OffloadConfig::new().install::<Plain<T>>(&device).expect("installs");
    let client = OffloadRuntime::<T::Runtime>::client(&device);
    let ones = || client.create_from_slice(&vec![1.0_f32.to_le_bytes(); LEN].concat());
    let input = ones();
    let touched = |count: CubeCount| {
        let output = ones();
        let argument = |handle: &Handle| {
            // SAFETY: the handle covers this many floats.
            unsafe { ArrayArg::from_raw_parts(handle.clone(), LEN) }
        };
        let (from, to) = (argument(&input), argument(&output));
        touch::launch::<OffloadRuntime<T::Runtime>>(&client, count, CubeDim::new_single(), from, to);
        output
    };
    let read = |handle: Handle| {
        let bytes = block_on(client.read_async(vec![handle])).map_err(|error| error.to_string())?;
        Ok::<_, String>(f32::from_le_bytes(bytes[0][..4].try_into().expect("four bytes")).to_bits())
    };

    assert_eq!(read(touched(CubeCount::new_single())), Ok(2.0_f32.to_bits()));
    let none = client.create_from_slice(&[0_u32, 1, 1].map(u32::to_le_bytes).concat());
    for count in [CubeCount::Static(1, 1 << 16, 1), CubeCount::Dynamic(none.binding())] {
        let output = touched(count);
        assert_eq!(read(input.clone()), Ok(1.0_f32.to_bits()), "no launch wrote there");
        let error = read(output).expect_err("the launch did not run");
        assert!(error.contains("INVALID_VALUE"), "{error}");
    }
    assert_eq!(stats::<Plain<T>>(&device).failures, 2);
    Facts::default()
}

#[test]
fn a_grid_that_cuda_refuses_for_a_loaded_kernel_leaves_no_readable_output() {
    let test = "a_grid_that_cuda_refuses_for_a_loaded_kernel_leaves_no_readable_output";
    let Some(machine) = Machine::eager(test) else { return };
    let (_, stand_in) = run_and_report(machine.child("cube/refused grids"));
    assert_eq!(stand_in["findings"].to_string(), r#"{"launch refused":2}"#);
}
