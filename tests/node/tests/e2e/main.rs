//! What only an installed Mimeo can show: pods, Services and probes, rollouts, reboots, upgrades,
//! removal.
//!
//! The tests share the one node and go one after another; see [`mimeo_node_tests`]. What Mimeo does
//! is tested on bare control planes (`tests/tests/it/`), quicker and in more cases.

mod certificates;
mod chart;
mod doors;
mod image;
mod install;
mod leader;
mod outage;
mod people;
mod restricted;
mod rollout;
mod story;
mod tenant;
mod traces;
mod uninstall;
mod upgrade;
