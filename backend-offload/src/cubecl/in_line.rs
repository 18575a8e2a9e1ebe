//! Copies in line with the work, for runtimes without copy streams.

use super::copy_streams::{CopyStreams, Pages, Rows};
use crate::tiers::StagingSource;
use cubecl_core::server::Handle;
use std::convert::Infallible;

#[derive(Debug)]
pub struct InLine;

impl<S> CopyStreams<S> for InLine {
    type End = Infallible;

    fn new(_: StagingSource) -> Self {
        Self
    }

    fn watch(&mut self, server: &mut S, _: usize, begin: &mut dyn FnMut(&mut S)) {
        begin(server);
    }

    fn serves(&self, _: usize) -> bool {
        false
    }

    unsafe fn start_out(
        &mut self,
        _: &mut S,
        _: Handle,
        _: (usize, Option<&Infallible>),
        _: Rows,
        _: &mut [u8],
        _: Pages,
    ) -> Result<Infallible, String> {
        Err("this runtime copies in line with its work".to_owned())
    }

    unsafe fn start_back(
        &mut self,
        _: u64,
        _: usize,
        _: &[u8],
        _: Pages,
        _: Option<&Infallible>,
    ) -> Result<Infallible, String> {
        Err("this runtime copies in line with its work".to_owned())
    }

    fn address(_: &mut S, _: Handle) -> Result<u64, String> {
        Err("this runtime copies in line with its work".to_owned())
    }

    fn mark(&mut self, _: usize) -> Option<Infallible> {
        None
    }

    fn order(&mut self, _: usize, copy: &Infallible) -> Result<(), String> {
        match *copy {}
    }

    fn has_ended(copy: &Infallible) -> Result<bool, String> {
        match *copy {}
    }

    fn wait(copy: &Infallible) -> Result<(), String> {
        match *copy {}
    }
}
