//! Tests of the engine, driven by events and answers as both programs drive it. There are tables
//! and stories by topic, a simulation of both programs against an API server in memory, and
//! generated worlds that a separate model judges.

mod announced;
mod common;
mod counted;
mod grants;
mod jobs;
mod numbers;
mod owners;
mod policies;
mod preview;
mod quota;
mod reach;
mod replaced;
mod resync;
mod selected;
mod shown;
mod simulation;
mod sources;
mod standby;
mod statuses;
mod tries;
mod unreadable;
mod variables;
mod worlds;
