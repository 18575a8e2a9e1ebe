//! Hints about the places of tensors.
//!
//! A hint changes the order of evictions, never a result, nor whether an operation can run. It belongs to a tensor's
//! present memory, which updates may replace: repeat it for a trained parameter after each step.

use crate::backend::Spilling;
use burn_core::module::{Module, ModuleVisitor, Param};
use burn_core::tensor::Tensor;
use pager::Preference;

/// Asks to evict the memory of `tensor` before or after all other memory. Views share the hint.
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

/// Applies [`prefer`] to every float parameter of `module`.
pub fn prefer_module<B: Spilling>(module: &impl Module<B>, preference: Preference) {
    module.visit(&mut Prefer(preference));
}

struct Prefer(Preference);

impl<B: Spilling> ModuleVisitor<B> for Prefer {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<B, D>>) {
        prefer(&param.val(), self.0);
    }
}
