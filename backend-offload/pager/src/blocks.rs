//! All blocks and byte counts (`a_block_removed_on_its_way_counts_until_its_move_ends`). One call changes a place and
//! posts it; a failed one changes nothing (`reports_that_contradict_the_books_are_faults_and_change_nothing`).

use crate::block::{Arena, Block, BlockId, Preference, Tier, Token};
use crate::copies::{Change, Copies, Fate, TierSet};
use crate::fault::{Fault, illegal};
use crate::ledger::Ledger;
use crate::limit::Limit;

#[derive(Debug)]
pub(crate) struct Blocks {
    slots: Vec<Slot>,
    free: Vec<u32>,
    ledger: Ledger,
    /// Oldest first.
    under_way: Vec<UnderWay>,
    started: u64,
}

#[derive(Debug, Default)]
struct Slot {
    generation: u32,
    block: Option<Block>,
}

#[derive(Debug)]
struct UnderWay {
    token: Token,
    id: BlockId,
    /// A removed block, whose memory still counts.
    removed: Option<Box<Block>>,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Ended {
    pub id: BlockId,
    pub bytes: u64,
    pub to: Option<Tier>,
    pub frees: Option<Tier>,
    /// The tier below the device that had the contents before.
    pub copy: Option<Tier>,
    /// `None` for a removed block.
    pub fate: Option<Fate>,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Used {
    pub bytes: u64,
    /// The previous operation that used it.
    pub last_use: u64,
    pub is_on_device: bool,
}

impl Blocks {
    pub fn new(budget: Limit) -> Self {
        Self {
            slots: Vec::new(),
            free: Vec::new(),
            ledger: Ledger::new(budget),
            under_way: Vec::new(),
            started: 0,
        }
    }

    pub fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    pub fn set_budget(&mut self, budget: Limit) {
        self.ledger.set_budget(budget);
    }

    pub fn change_limit(&mut self, change: impl FnOnce(&mut Ledger)) {
        change(&mut self.ledger);
    }

    pub fn reset_peaks(&mut self) {
        self.ledger.reset_peaks();
    }

    pub fn trim(&mut self) {
        self.ledger.trim();
    }

    pub fn get(&self, id: BlockId) -> Option<&Block> {
        let slot = self.slots.get(id.index as usize)?;
        slot.block.as_ref().filter(|_| slot.generation == id.generation)
    }

    pub fn block(&self, id: BlockId) -> Result<&Block, Fault> {
        self.get(id).ok_or(Fault::UnknownBlock(id))
    }

    fn block_mut(&mut self, id: BlockId) -> Result<&mut Block, Fault> {
        find(&mut self.slots, id)
    }

    pub fn live(&self) -> impl Iterator<Item = (BlockId, &Block)> + Clone {
        self.slots.iter().enumerate().filter_map(|(index, slot)| {
            Some((BlockId { index: index as u32, generation: slot.generation }, slot.block.as_ref()?))
        })
    }

    pub fn id(&self, index: u32) -> Option<BlockId> {
        let slot = self.slots.get(index as usize)?;
        slot.block.as_ref().map(|_| BlockId { index, generation: slot.generation })
    }

    pub fn count(&self) -> u64 {
        (self.slots.len() - self.free.len()) as u64
    }

    /// The most blocks ever alive at once.
    pub fn most(&self) -> u64 {
        self.slots.len() as u64
    }

    pub fn insert(&mut self, bytes: u64, arena: Arena, now: u64) -> BlockId {
        let block = Block::new(bytes, arena, now);
        if let Some(index) = self.free.pop() {
            let slot = &mut self.slots[index as usize];
            slot.generation = slot.generation.wrapping_add(1);
            slot.block = Some(block);
            return BlockId { index, generation: slot.generation };
        }
        self.slots.push(Slot { generation: 0, block: Some(block) });
        BlockId { index: (self.slots.len() - 1) as u32, generation: 0 }
    }

    pub fn remove(&mut self, id: BlockId) -> Result<(), Fault> {
        let block = *self.block(id)?;
        if block.copies.moving().is_none() {
            self.ledger.post(block.bytes, block.arena, freed(&block.copies))?;
        }
        if let Some(at) = block.copies.token().and_then(|token| self.position(token).ok()) {
            if block.copies.moving().is_some() {
                self.under_way[at].removed = Some(Box::new(block));
            } else {
                self.under_way.remove(at);
            }
        }
        self.slots[id.index as usize].block = None;
        self.free.push(id.index);
        Ok(())
    }

    pub fn discard(&mut self, id: BlockId) -> Result<Option<Token>, Fault> {
        let (mut block, token) = (*self.block(id)?, Token(self.started));
        if block.copies.token().is_some() {
            return Ok(None);
        }
        let change = block.copies.discard(token).ok_or_else(|| illegal("discarded", id, &block))?;
        self.ledger.post(block.bytes, block.arena, change)?;
        self.under_way.push(UnderWay { token, id, removed: Some(Box::new(block)) });
        self.started += 1;
        self.slots[id.index as usize].block = None;
        self.free.push(id.index);
        Ok(Some(token))
    }

    pub fn wrote(&mut self, id: BlockId, tier: Tier) -> Result<TierSet, Fault> {
        let block = *self.block(id)?;
        if tier == Tier::Device && block.copies.is_dirty() {
            return Ok(TierSet::default());
        }
        let mut copies = block.copies;
        let change = copies.wrote(tier).ok_or_else(|| illegal("written", id, &block))?;
        self.ledger.post(block.bytes, block.arena, change)?;
        if let Some(token) = block.copies.token()
            && copies.token().is_none()
        {
            self.under_way.remove(self.position(token)?);
        }
        self.block_mut(id)?.copies = copies;
        Ok(change.loses)
    }

    /// `attempted` describes the transfer in a fault.
    pub fn start(
        &mut self,
        id: BlockId,
        to: Option<Tier>,
        frees: Option<Tier>,
        attempted: &'static str,
    ) -> Result<Token, Fault> {
        let block = find(&mut self.slots, id)?;
        let token = Token(self.started);
        let mut copies = block.copies;
        let change = copies.start(token, to, frees).ok_or_else(|| illegal(attempted, id, block))?;
        self.ledger.post(block.bytes, block.arena, change)?;
        block.copies = copies;
        self.under_way.push(UnderWay { token, id, removed: None });
        self.started += 1;
        Ok(token)
    }

    pub fn end(&mut self, token: Token, succeeded: bool) -> Result<Ended, Fault> {
        let at = self.position(token)?;
        let UnderWay { id, removed, .. } = &mut self.under_way[at];
        let (id, is_removed) = (*id, removed.is_some());
        let block = match removed {
            Some(block) => block,
            None => find(&mut self.slots, id)?,
        };
        let (bytes, copy, mut copies) = (block.bytes, block.copies.copy(), block.copies);
        let ended = copies.end(succeeded).ok_or(Fault::UnknownMove(token))?;
        let loses = if is_removed { block.copies.all() } else { ended.loses };
        self.ledger.post(bytes, block.arena, Change { gains: None, loses })?;
        block.copies = copies;
        self.under_way.remove(at);
        let fate = (!is_removed).then_some(ended.fate);
        Ok(Ended { id, bytes, to: ended.to, frees: ended.frees, copy, fate })
    }

    fn position(&self, token: Token) -> Result<usize, Fault> {
        let found = self.under_way.binary_search_by_key(&token, |under_way| under_way.token);
        found.map_err(|_| Fault::UnknownMove(token))
    }

    fn carried(&self, under_way: &UnderWay) -> Option<&Block> {
        self.get(under_way.id).filter(|_| under_way.removed.is_none())
    }

    /// The oldest move to or from the device.
    pub fn oldest(&self) -> Option<Token> {
        let moves = |under_way: &UnderWay| {
            self.carried(under_way).is_none_or(|block| block.copies.moving().is_some())
        };
        self.under_way.iter().find(|under_way| moves(under_way)).map(|under_way| under_way.token)
    }

    /// Transfers that will free device memory, oldest first, and their bytes.
    pub fn departing(&self) -> impl Iterator<Item = (Token, u64)> {
        self.under_way.iter().filter_map(|under_way| {
            let block = match &under_way.removed {
                Some(block) => &**block,
                None => self.get(under_way.id).filter(|block| block.copies.departs())?,
            };
            Some((under_way.token, block.bytes))
        })
    }

    pub fn departing_bytes(&self) -> u64 {
        self.departing().map(|(_, bytes)| bytes).sum()
    }

    pub fn loading(&self) -> Option<(Token, BlockId)> {
        self.under_way.iter().find_map(|under_way| {
            let block = self.carried(under_way)?;
            block.copies.loading().map(|token| (token, under_way.id))
        })
    }

    /// Notes a use by operation `now`, which keeps a leaving block. `None` for a repeated operand.
    pub fn note_use(&mut self, id: BlockId, now: u64) -> Result<Option<Used>, Fault> {
        let block = self.block_mut(id)?;
        if block.last_use == now {
            return Ok(None);
        }
        let last_use = std::mem::replace(&mut block.last_use, now);
        block.ahead = false;
        block.copies.keep();
        Ok(Some(Used { bytes: block.bytes, last_use, is_on_device: block.is_on_device() }))
    }

    pub fn pin(&mut self, id: BlockId) -> Result<(), Fault> {
        let block = *self.block(id)?;
        if !block.is_on_device() {
            return Err(illegal("pinned", id, &block));
        }
        self.block_mut(id)?.pinned = true;
        Ok(())
    }

    /// Returns whether the preference changed.
    pub fn prefer(&mut self, id: BlockId, preference: Preference) -> Result<bool, Fault> {
        let before = std::mem::replace(&mut self.block_mut(id)?.preference, preference);
        Ok(before != preference)
    }

    pub fn note_failure(&mut self, id: BlockId, now: u64) -> Result<(), Fault> {
        self.block_mut(id)?.stuck_in = now;
        Ok(())
    }

    pub fn forgive_failures(&mut self) {
        self.slots.iter_mut().filter_map(|slot| slot.block.as_mut()).for_each(|block| block.stuck_in = 0);
    }

    pub fn set_ahead(&mut self, id: BlockId, ahead: bool) -> Result<bool, Fault> {
        Ok(std::mem::replace(&mut self.block_mut(id)?.ahead, ahead))
    }
}

fn find(slots: &mut [Slot], id: BlockId) -> Result<&mut Block, Fault> {
    let slot = slots.get_mut(id.index as usize).ok_or(Fault::UnknownBlock(id))?;
    slot.block.as_mut().filter(|_| slot.generation == id.generation).ok_or(Fault::UnknownBlock(id))
}

fn freed(copies: &Copies) -> Change {
    Change { gains: None, loses: copies.all() }
}
