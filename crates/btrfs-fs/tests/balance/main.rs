//! Balances: which block groups are emptied and how, what stops them, and what damage, crowds and crashes make of them.

#[path = "../common/mod.rs"]
mod common;
#[path = "../common/spread.rs"]
mod spread;
#[path = "../watch/mod.rs"]
mod watch;

mod committed;
mod counted;
mod crash_balance;
mod crowd_balance;
mod damage;
mod filled;
mod half_dropped;
mod lost;
mod profiles;
mod relocate;
mod stops;
mod turns;
