//! Quota groups, simple quotas and limits.

#[path = "../common/mod.rs"]
mod common;
#[path = "../histories/mod.rs"]
mod histories;
#[path = "../lost/mod.rs"]
mod lost;

mod crash_histories;
mod edquot;
mod many_groups;
mod qgroups;
mod quotas;
mod simple_quotas;
mod simple_quotas_beside;
mod simple_quotas_lost;
