//! The bell that wakes a queue, and the inbox with news for its operations.

use crate::backend::ring::Bell;
use crate::engine::inbox::Inbox;
use crate::engine::token::Token;
use crate::engine::waiter::News;
use std::sync::Arc;
use std::task::Waker;

/// Bell and inbox of a queue.
#[derive(Debug)]
pub(super) struct Mailbox {
    bell: Arc<Bell>,
    /// It rang since the last `wait`.
    rang: bool,
    waker: Waker,
    inbox: Arc<Inbox>,
    spare_mail: Vec<(usize, News)>,
}

impl Mailbox {
    pub fn new(bell: Arc<Bell>) -> Self {
        let waker = Waker::from(bell.clone());
        Self {
            inbox: Arc::new(Inbox::new(bell.clone())),
            bell,
            rang: false,
            waker,
            spare_mail: Vec::new(),
        }
    }

    pub fn bell(&self) -> &Arc<Bell> {
        &self.bell
    }

    pub fn waker(&self) -> &Waker {
        &self.waker
    }

    /// Whether the bell was heard since this was reset.
    pub fn rang(&self) -> bool {
        self.rang
    }

    pub fn reset_rang(&mut self) {
        self.rang = false;
    }

    /// Takes all news, after the bell was heard. [`keep`](Self::keep) takes the memory back.
    pub fn take_mail(&mut self) -> Vec<(usize, News)> {
        self.rang = true;
        self.inbox.take(std::mem::take(&mut self.spare_mail))
    }

    /// Keeps the memory of mail that was read.
    pub fn keep(&mut self, mail: Vec<(usize, News)>) {
        self.spare_mail = mail;
    }

    /// The name of an operation for the core of its file.
    pub fn token(&self, number: usize) -> Token {
        Token::Queue(self.inbox.clone(), number)
    }

    /// The number of the operation that a token names, if it is one of this queue.
    pub fn own(&self, token: &Token) -> Option<usize> {
        match token {
            Token::Queue(inbox, number) if Arc::ptr_eq(inbox, &self.inbox) => Some(*number),
            _ => None,
        }
    }
}
