//! What the service manager is told (sd_notify(3)); nothing happens where there is none.

use std::time::Duration;

use sd_notify::NotifyState;
use tokio::time::{MissedTickBehavior, interval};

/// Everything is open and loaded; `status` is shown by `systemctl status`.
pub(super) fn ready(status: &str) {
    notify(&[NotifyState::Ready, NotifyState::Status(status)]);
}

/// How it goes now.
pub(super) fn status(status: &str) {
    notify(&[NotifyState::Status(status)]);
}

/// A reload begins; it ends with [`ready`].
pub(super) fn reloading() {
    match NotifyState::monotonic_usec_now() {
        Ok(now) => notify(&[NotifyState::Reloading, now]),
        Err(_) => notify(&[NotifyState::Reloading]),
    }
}

/// The end begins.
pub(super) fn stopping() {
    notify(&[NotifyState::Stopping]);
}

/// Says, as often as the service manager wants it, that the event loop still turns; for ever.
pub(super) async fn feed_watchdog() {
    let Some(patience) =
        sd_notify::watchdog_enabled().filter(|patience| *patience > Duration::ZERO)
    else {
        return;
    };
    let mut feeding = interval(patience / 2);
    feeding.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        feeding.tick().await;
        notify(&[NotifyState::Watchdog]);
    }
}

fn notify(states: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        tracing::debug!("the service manager was not told: {error}");
    }
}
