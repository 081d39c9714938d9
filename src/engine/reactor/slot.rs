//! One operation of a future: its kind, its stage and its memory. The future and the worker of its
//! reactor share it, and either may drop it last.
//!
//! The memory stays in it at one address from the first poll on. Only the future takes it out: when
//! the operation has finished, or when it never begins.

use crate::buffer::{Kept, Segment};
use crate::engine::handle::FileHandle;
use crate::engine::queue::OpKind;
use crate::error::Result;
use crate::sync::Mutex;
use std::fmt;
use std::sync::Arc;
use std::task::{Poll, Waker};

/// One operation of a future.
pub(crate) struct Slot<K: ?Sized> {
    pub target: Arc<FileHandle>,
    pub what: OpKind,
    lent: Option<Segment>,
    stage: Mutex<SlotStage>,
    kept: K,
}

/// A slot with any memory, as the worker sees it.
pub(crate) type Listed = Slot<dyn Send + Sync>;

#[derive(Debug)]
enum SlotStage {
    /// The worker has not begun it. Holds the waker of its task.
    Waiting(Waker),
    /// The worker has begun it. Holds the waker of its task, unless the future was dropped.
    Begun(Option<Waker>),
    Finished(Result<u64>),
    /// The future has its result, or gave it up before it began.
    Over,
}

impl<M> Slot<Kept<M>> {
    /// An operation with `memory`, of which it uses the given bytes, if any.
    pub fn new(
        target: Arc<FileHandle>,
        what: OpKind,
        memory: M,
        bytes: Option<fn(&mut M) -> Segment>,
        waker: Waker,
    ) -> Arc<Self> {
        let stage = Mutex::new(SlotStage::Waiting(waker));
        let mut slot = Arc::new(Self { target, what, lent: None, stage, kept: Kept::new(memory) });
        let alone = Arc::get_mut(&mut slot).expect("just made");
        alone.lent = bytes.and_then(|bytes| alone.kept.lend(bytes));
        slot
    }

    /// Takes the memory.
    ///
    /// # Safety
    ///
    /// The operation has finished, or never begins; and only the future calls this.
    #[allow(unsafe_code)]
    pub unsafe fn take_memory(&self) -> M {
        // SAFETY: nothing uses its bytes then, and the worker never takes it.
        unsafe { self.kept.take() }.expect("taken once")
    }
}

impl<K: ?Sized> Slot<K> {
    /// The bytes that the worker lends to its queue.
    pub fn lent(&self) -> Option<Segment> {
        self.lent
    }

    /// Marks it as begun by the worker. False if it was given up.
    pub fn begin(&self) -> bool {
        let mut stage = self.stage.lock();
        let is_waiting = matches!(*stage, SlotStage::Waiting(_));
        if let SlotStage::Waiting(waker) = std::mem::replace(&mut *stage, SlotStage::Over) {
            *stage = SlotStage::Begun(Some(waker));
        }
        is_waiting
    }

    /// Whether it was not given up before it began.
    pub fn is_wanted(&self) -> bool {
        !matches!(*self.stage.lock(), SlotStage::Over)
    }

    /// Whether a thread changes its stage. In the child of a fork, a thread of the parent does so
    /// forever.
    pub fn is_locked(&self) -> bool {
        self.stage.try_lock().is_none()
    }

    /// Stores the result. Nothing may use its bytes any more. Returns the waker to wake, if any.
    pub fn finish(&self, result: Result<u64>) -> Option<Waker> {
        match std::mem::replace(&mut *self.stage.lock(), SlotStage::Finished(result)) {
            SlotStage::Begun(waker) => waker,
            stage => unreachable!("only what was begun is finished: {stage:?}"),
        }
    }

    /// Returns the result. Until the operation has finished, registers `waker`.
    pub fn poll(&self, waker: &Waker) -> Poll<Result<u64>> {
        // Dropped without the lock: that may drop a task, with all its values.
        let mut before = None;
        let mut stage = self.stage.lock();
        match &mut *stage {
            SlotStage::Waiting(waiting) | SlotStage::Begun(Some(waiting))
                if waiting.will_wake(waker) => {}
            SlotStage::Waiting(waiting) | SlotStage::Begun(Some(waiting)) => {
                before = Some(std::mem::replace(waiting, waker.clone()));
            }
            SlotStage::Finished(_) => {
                let SlotStage::Finished(result) = std::mem::replace(&mut *stage, SlotStage::Over)
                else {
                    unreachable!("just seen")
                };
                return Poll::Ready(result);
            }
            SlotStage::Begun(None) | SlotStage::Over => {
                unreachable!("its future has what it waited for")
            }
        }
        drop(stage);
        drop(before);
        Poll::Pending
    }

    /// Gives the operation up. True if it has not begun, and so never will.
    pub fn give_up(&self) -> bool {
        let mut stage = self.stage.lock();
        let before = match &mut *stage {
            SlotStage::Waiting(_) => std::mem::replace(&mut *stage, SlotStage::Over),
            // Takes only the waker, which may keep a whole task.
            SlotStage::Begun(waker) => SlotStage::Begun(waker.take()),
            SlotStage::Finished(_) | SlotStage::Over => return false,
        };
        drop(stage);
        matches!(before, SlotStage::Waiting(_))
    }
}

impl<K: ?Sized> fmt::Debug for Slot<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Slot")
            .field("what", &self.what)
            .field("stage", &self.stage)
            .finish_non_exhaustive()
    }
}
