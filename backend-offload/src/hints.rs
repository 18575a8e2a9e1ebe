//! Hints of the program about where its tensors should be.
//!
//! A hint decides which blocks leave the device first, and so how many bytes move. It never changes what is computed, nor
//! whether an operation can run. It holds for the memory a tensor has at the time: an update that is not
//! made in place gives a tensor other memory, without hints, so give the hint of a parameter in training again
//! after each step of its optimizer.

use crate::backend::Spilling;
use burn_core::module::{Module, ModuleVisitor, Param};
use burn_core::tensor::Tensor;
use pager::Preference;

/// Asks that the memory of `tensor` leave the device late or early, compared with all other memory.
///
/// Tensors that share memory, as views do, share the hint.
///
/// ```
/// # #[cfg(feature = "router")]
/// # fn main() {
/// use backend_offload::{Offload, Preference, prefer};
/// use burn::tensor::Tensor;
/// # use burn_flex::{Flex, FlexDevice};
///
/// type B = Offload<Flex>;
/// let table = Tensor::<B, 2>::zeros([512, 512], &FlexDevice);
/// prefer(&table, Preference::Host); // read once in a while; others need the room more
/// # }
/// # #[cfg(not(feature = "router"))]
/// # fn main() {}
/// ```
pub fn prefer<B: Spilling, const D: usize>(tensor: &Tensor<B, D>, preference: Preference) {
    B::prefer(tensor.clone().into_primitive().tensor(), preference);
}

/// Asks that all float parameters of `module` leave the device late or early: [`prefer`] for each.
pub fn prefer_module<B: Spilling>(module: &impl Module<B>, preference: Preference) {
    module.visit(&mut Prefer(preference));
}

struct Prefer(Preference);

impl<B: Spilling> ModuleVisitor<B> for Prefer {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<B, D>>) {
        prefer(&param.val(), self.0);
    }
}
