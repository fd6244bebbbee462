//! Load on a milter: what `milter-load` does, from an address and a plan to a report.
//!
//! The generator is the MTA's end of the protocol, as Postfix speaks it: a macro packet before each step, steps that are
//! not answered gathered into one write, no wait where the milter said that it will not reply, SKIP obeyed, several
//! messages a connection, ABORT after each and QUIT at the end. All connections are served by one thread, so that the
//! milter keeps the rest of the machine, and what that thread takes is part of the report.
//!
//! - [`address`]: where the milter listens;
//! - [`message`]: what is sent, made into packets once;
//! - [`connection`]: one connection, and what can go wrong on it;
//! - [`run`](mod@run): so many connections, messages, rates and limits;
//! - [`process`]: what the milter takes of the machine;
//! - [`report`]: counts and percentiles, as text and JSON.

pub mod address;
pub mod connection;
pub mod message;
mod pace;
pub mod process;
pub mod report;
pub mod run;
