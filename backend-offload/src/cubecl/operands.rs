//! The buffers that a launch names.

use super::table::{Named, Table};
use super::visibility::Writes;
use cubecl_core::prelude::CubeCount;
use cubecl_core::server::{Binding, KernelArguments};
use pager::BlockId;

/// Reused, to allocate its lists once.
#[derive(Default)]
pub(super) struct Operands {
    buffers: Vec<Named>,
    maps: Vec<Named>,
    count: Option<Named>,
    blocks: Vec<BlockId>,
    /// Clones: a runtime's panic takes the arguments.
    small: Vec<(usize, Binding)>,
}

impl Operands {
    pub(super) fn name(&mut self, table: &mut Table, arguments: &KernelArguments, count: &CubeCount) {
        for (n, binding) in arguments.buffers.iter().enumerate() {
            let named = table.name(binding);
            self.buffers.push(named);
            if named == Named::Small {
                self.small.push((n, binding.clone()));
            }
        }
        self.maps.extend(arguments.tensor_maps.iter().map(|map| table.name(&map.binding)));
        if let CubeCount::Dynamic(binding) = count {
            self.count = Some(table.name(binding));
        }
        let named = self.buffers.iter().chain(&self.maps).chain(&self.count);
        self.blocks.extend(named.filter_map(|named| named.block()));
    }

    pub(super) fn clear(&mut self) {
        self.buffers.clear();
        self.maps.clear();
        self.count = None;
        self.blocks.clear();
        self.small.clear();
    }

    pub(super) fn blocks(&self) -> &[BlockId] {
        &self.blocks
    }

    pub(super) fn with_bindings<'a>(
        &'a self,
        arguments: &'a KernelArguments,
        count: &'a CubeCount,
    ) -> impl Iterator<Item = (Named, &'a Binding)> {
        let dynamic = match count {
            CubeCount::Dynamic(binding) => Some(binding),
            CubeCount::Static(..) => None,
        };
        let buffers = self.buffers.iter().zip(&arguments.buffers);
        let maps = self.maps.iter().zip(arguments.tensor_maps.iter().map(|map| &map.binding));
        buffers.chain(maps).chain(self.count.iter().zip(dynamic)).map(|(named, binding)| (*named, binding))
    }

    /// All of them if `writes` is unknown.
    pub(super) fn written<'a>(&'a self, writes: Option<&'a Writes>) -> impl Iterator<Item = BlockId> + 'a {
        let to_buffer = move |n| writes.is_none_or(|writes| writes.to_buffer(n));
        let through_map = move |n| writes.is_none_or(|writes| writes.through_map(n));
        let buffers = self.buffers.iter().enumerate().filter(move |(n, _)| to_buffer(*n));
        let maps = self.maps.iter().enumerate().filter(move |(n, _)| through_map(*n));
        buffers.chain(maps).filter_map(|(_, named)| named.block())
    }

    pub(super) fn written_small<'a>(
        &'a self,
        writes: Option<&'a Writes>,
    ) -> impl Iterator<Item = &'a Binding> + 'a {
        let to_buffer = move |n| writes.is_none_or(|writes| writes.to_buffer(n));
        self.small.iter().filter(move |(n, _)| to_buffer(*n)).map(|(_, binding)| binding)
    }

    pub(super) fn rewrite(
        &self,
        arguments: &mut KernelArguments,
        count: &mut CubeCount,
        rewrite: impl Fn(&mut Binding, Named),
    ) {
        for (binding, named) in arguments.buffers.iter_mut().zip(&self.buffers) {
            rewrite(binding, *named);
        }
        for (map, named) in arguments.tensor_maps.iter_mut().zip(&self.maps) {
            rewrite(&mut map.binding, *named);
        }
        if let (CubeCount::Dynamic(binding), Some(named)) = (count, self.count) {
            rewrite(binding, named);
        }
    }
}
