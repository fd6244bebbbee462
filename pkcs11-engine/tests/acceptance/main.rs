//! What befell operators of other programs with tokens, and what is expected here: one test for each case, over a module
//! that fails on request, and over SoftHSM and others where the case is about how real ones behave.
//!
//! Tests are named after the rows of the table of cases: `row_01` is the first. Rows that are about a whole program (its
//! exit, its log, how it becomes a daemon) are tested where the programs are; here is what the engine has to do with them.
//! One program for all, so that tests that wait do so at the same time.

mod choice;
mod conformance;
mod ending;
mod hangs;
mod pins;
mod processes;
mod recovery;
mod rig;
mod serving;
mod sessions;
mod softhsm;
