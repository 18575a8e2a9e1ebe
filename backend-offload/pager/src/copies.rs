//! Copies of one block: the tiers with its bytes, and at most one transfer:
//!
//! | transfer | copies to | frees |
//! |---|---|---|
//! | evict a dirty block | host | device |
//! | evict a clean block | – | device |
//! | bring | device | – |
//! | load from disk | host | – |
//! | write to disk ahead | disk | – |
//! | spill to disk | disk | host |
//! | spill again, as the disk kept its copy | – | host |
//! | drop a copy | – | host or disk |
//!
//! A transfer's bytes count on both sides until it ends (`a_move_holds_its_bytes_on_both_sides_until_it_lands`). A
//! failed transfer changes nothing (`a_block_that_could_not_leave_is_as_dirty_or_clean_as_it_was`). If an operation
//! keeps the block, the transfer frees nothing (`an_operation_takes_a_leaving_block_back`), and its copy is dropped if
//! the block was written since.

use crate::block::{Place, Tier, Token};

/// A set of tiers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TierSet(u8);

impl TierSet {
    /// The set of one tier.
    pub const fn of(tier: Tier) -> Self {
        Self(1 << tier as u8)
    }

    /// Whether the set is empty.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Whether the set contains the tier.
    pub const fn contains(self, tier: Tier) -> bool {
        self.0 & Self::of(tier).0 != 0
    }

    pub(crate) fn with(self, tiers: impl Into<Self>) -> Self {
        Self(self.0 | tiers.into().0)
    }

    pub(crate) fn without(self, tiers: impl Into<Self>) -> Self {
        Self(self.0 & !tiers.into().0)
    }
}

impl From<Option<Tier>> for TierSet {
    fn from(tier: Option<Tier>) -> Self {
        tier.map_or(Self::default(), Self::of)
    }
}

impl From<Tier> for TierSet {
    fn from(tier: Tier) -> Self {
        Self::of(tier)
    }
}

const DEVICE: TierSet = TierSet::of(Tier::Device);
const HOST: TierSet = TierSet::of(Tier::Host);
const DISK: TierSet = TierSet::of(Tier::Disk);

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Copies {
    held: TierSet,
    /// It has contents to preserve.
    written: bool,
    transfer: Option<Transfer>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Transfer {
    token: Token,
    to: Option<Tier>,
    frees: Option<Tier>,
    fate: Fate,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fate {
    Awaited,
    /// Kept by an operation; the copy in progress is current.
    Kept,
    /// The copy in progress is outdated.
    Outdated,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Change {
    pub gains: Option<Tier>,
    pub loses: TierSet,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Ended {
    pub to: Option<Tier>,
    pub frees: Option<Tier>,
    pub fate: Fate,
    pub loses: TierSet,
}

impl Copies {
    pub fn held(&self) -> TierSet {
        self.held
    }

    pub fn is_written(&self) -> bool {
        self.written
    }

    pub fn is_on_device(&self) -> bool {
        self.held.contains(Tier::Device) && !self.is_leaving()
    }

    /// Whether the device alone has the contents, in no transfer.
    pub fn is_dirty(&self) -> bool {
        self.written && self.held == DEVICE && self.transfer.is_none()
    }

    pub fn is_nowhere(&self) -> bool {
        self.held.is_empty() && self.transfer.is_none()
    }

    pub fn needs_copy(&self) -> bool {
        self.written && self.held == DEVICE && !self.is_leaving()
    }

    pub fn rests_on_host(&self) -> bool {
        self.held.contains(Tier::Host) && !self.held.contains(Tier::Device) && self.transfer.is_none()
    }

    fn is_leaving(&self) -> bool {
        self.transfer
            .is_some_and(|transfer| transfer.frees == Some(Tier::Device) && transfer.fate == Fate::Awaited)
    }

    fn is_returning(&self) -> bool {
        self.transfer.is_some_and(|transfer| transfer.to == Some(Tier::Device))
    }

    /// The fastest tier below the device that has the contents.
    pub fn copy(&self) -> Option<Tier> {
        [Tier::Host, Tier::Disk].into_iter().find(|tier| self.held.contains(*tier))
    }

    pub fn place(&self) -> Place {
        let copy = self.copy();
        if self.is_leaving() {
            Place::Leaving { clean: copy }
        } else if self.is_returning() {
            Place::Returning { from: copy }
        } else if self.held.contains(Tier::Device) {
            Place::Device { clean: copy }
        } else {
            copy.map_or(Place::Nowhere, Place::Away)
        }
    }

    pub fn moving(&self) -> Option<Token> {
        self.transfer.filter(Transfer::involves_device).map(|transfer| transfer.token)
    }

    pub fn loading(&self) -> Option<Token> {
        let loads = |transfer: &Transfer| transfer.to == Some(Tier::Host) && transfer.frees.is_none();
        self.transfer.filter(loads).map(|transfer| transfer.token)
    }

    pub fn departs(&self) -> bool {
        self.is_leaving()
    }

    fn allows(&self, to: Option<Tier>, frees: Option<Tier>) -> bool {
        let is_dirty = self.written && self.held == DEVICE;
        let row = match (to, frees) {
            (Some(Tier::Host), Some(Tier::Device)) => is_dirty,
            (None, Some(Tier::Device)) => self.held.contains(Tier::Device) && !is_dirty,
            (Some(Tier::Device), None) => {
                self.held.is_empty() || self.held == HOST || self.held == HOST.with(DISK)
            }
            (Some(Tier::Host), None) => self.held == DISK,
            (Some(Tier::Disk), None | Some(Tier::Host)) => self.held == HOST,
            (None, Some(tier)) => self.held.contains(tier) && self.held != TierSet::of(tier),
            _ => false,
        };
        row && self.transfer.is_none()
    }

    /// Returns `None` if the table forbids the transfer.
    pub fn start(&mut self, token: Token, to: Option<Tier>, frees: Option<Tier>) -> Option<Change> {
        if !self.allows(to, frees) {
            return None;
        }
        self.transfer = Some(Transfer { token, to, frees, fate: Fate::Awaited });
        Some(Change { gains: to, loses: TierSet::default() })
    }

    /// Frees the device, whose contents are not needed; other copies are lost at once.
    pub fn discard(&mut self, token: Token) -> Option<Change> {
        if !self.held.contains(Tier::Device) || self.transfer.is_some() {
            return None;
        }
        let loses = self.held.without(DEVICE);
        let transfer = Transfer { token, to: None, frees: Some(Tier::Device), fate: Fate::Awaited };
        *self = Self { held: DEVICE, written: false, transfer: Some(transfer) };
        Some(Change { gains: None, loses })
    }

    pub fn end(&mut self, succeeded: bool) -> Option<Ended> {
        let Transfer { to, frees, fate, .. } = self.transfer.take()?;
        let loses = match fate {
            Fate::Awaited if succeeded => frees,
            Fate::Kept if succeeded => None,
            _ => to,
        };
        self.held = self.held.with(to).without(loses);
        Some(Ended { to, frees, fate, loses: loses.into() })
    }

    /// Takes a simulated transfer, which ends at once.
    pub fn take(&mut self, to: Option<Tier>, frees: Option<Tier>) {
        if self.start(Token(u64::MAX), to, frees).is_some() {
            self.end(true);
        }
    }

    pub fn keep(&mut self) {
        if self.is_leaving()
            && let Some(transfer) = &mut self.transfer
        {
            transfer.fate = Fate::Kept;
        }
    }

    /// Other copies become stale. `None` if the block neither is nor can start there.
    pub fn wrote(&mut self, tier: Tier) -> Option<Change> {
        let is_there = match tier {
            Tier::Device => self.is_on_device(),
            Tier::Host => !self.held.contains(Tier::Device) && self.moving().is_none(),
            Tier::Disk => false,
        };
        if !is_there {
            return None;
        }
        let mut before = self.held;
        if let Some(transfer) = &mut self.transfer {
            transfer.fate = Fate::Outdated;
        }
        if let Some(Transfer { to, .. }) = self.transfer.take_if(|transfer| !transfer.involves_device()) {
            // Host memory taken by a load holds the contents.
            before = before.with(to);
        }
        self.written = true;
        self.held = tier.into();
        let gains = Some(tier).filter(|tier| !before.contains(*tier));
        Some(Change { gains, loses: before.without(tier) })
    }

    pub fn all(&self) -> TierSet {
        self.held.with(self.transfer.and_then(|transfer| transfer.to))
    }

    pub fn token(&self) -> Option<Token> {
        self.transfer.map(|transfer| transfer.token)
    }
}

impl Transfer {
    fn involves_device(&self) -> bool {
        self.to == Some(Tier::Device) || self.frees == Some(Tier::Device)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIERS: [Option<Tier>; 4] = [None, Some(Tier::Device), Some(Tier::Host), Some(Tier::Disk)];

    fn posted(books: TierSet, change: Change) -> TierSet {
        assert!(change.gains.is_none_or(|tier| !books.contains(tier)), "a tier takes the bytes once");
        assert_eq!(change.loses.without(books), TierSet::default(), "a tier gives up what it has");
        books.with(change.gains).without(change.loses)
    }

    #[test]
    fn any_moves_and_writes_keep_the_contents_and_post_what_tiers_hold() {
        let mut chance = 1u64;
        let mut next = |below: u64| {
            chance = chance.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (chance >> 33) % below
        };
        let (mut copies, mut books) = (Copies::default(), TierSet::default());
        let mut rows = std::collections::BTreeSet::new();
        for n in 0..200_000 {
            let change = match next(8) {
                0 => copies.wrote(if next(2) == 0 { Tier::Device } else { Tier::Host }),
                1 => {
                    copies.keep();
                    None
                }
                2 | 3 => copies.end(next(4) > 0).map(|ended| Change { gains: None, loses: ended.loses }),
                _ => {
                    let (to, frees) = (TIERS[next(4) as usize], TIERS[next(4) as usize]);
                    let change = copies.start(Token(n), to, frees);
                    rows.extend(change.map(|_| (to, frees)));
                    change
                }
            };
            books = posted(books, change.unwrap_or_default());
            assert_eq!(books, copies.all(), "{copies:?}");
            assert!(!copies.is_written() || !copies.held().is_empty(), "contents are somewhere: {copies:?}");
        }
        assert_eq!(rows.len(), 8, "the table: {rows:?}");
    }
}
