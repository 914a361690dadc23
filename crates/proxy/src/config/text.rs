//! Parses parts of the configuration from flags.

use super::types::{BufferSetting, ListenerConfig, ProxyVersion};
use intercept::{AccessOptions, ListenerAccess, parse_address};
use std::{fmt, str::FromStr};
use units::UnitError;

impl FromStr for ProxyVersion {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "v1" => Ok(ProxyVersion::V1),
            "v2" => Ok(ProxyVersion::V2),
            _ => Err(format!("unknown PROXY protocol version {text:?}: expected v1 or v2")),
        }
    }
}

impl FromStr for ListenerConfig {
    type Err = String;

    /// A listener and its options, separated by commas:
    ///
    /// - `transparent=[::]:5000`, without options;
    /// - `forward=127.0.0.1:8080=192.0.2.10:80`, with `send-proxy=v2`, `accept-proxy`,
    ///   `accept-proxy-max=16KiB`;
    /// - `socks5=127.0.0.1:1080`, with these and `allow=PREFIX` and `deny=PREFIX` (repeatable),
    ///   `users=FILE`, `user=NAME:PASSWORD` (repeatable);
    /// - `bond=[::]:7000`, with `send-proxy=v2`.
    fn from_str(text: &str) -> Result<Self, String> {
        let mut parts = text.split(',');
        let listener = parts.next().unwrap_or_default();
        let mut listen = match listener.split_once('=') {
            Some(("transparent", at)) => ListenerConfig::transparent(parse_address(at)?),
            Some(("forward", both)) => {
                let (at, to) = both
                    .split_once('=')
                    .ok_or_else(|| format!("listener {listener:?} has no destination: write forward=ADDRESS:PORT=ADDRESS:PORT"))?;
                ListenerConfig::forward(parse_address(at)?, parse_address(to)?)
            }
            Some(("socks5", at)) => ListenerConfig::socks5(parse_address(at)?),
            Some(("bond", at)) => ListenerConfig::bond(parse_address(at)?),
            _ => {
                return Err(format!(
                    "cannot parse listener {listener:?}: expected transparent=ADDRESS:PORT, forward=ADDRESS:PORT=ADDRESS:PORT, \
                     socks5=ADDRESS:PORT or bond=ADDRESS:PORT"
                ));
            }
        };
        let mut access = AccessOptions::default();
        for part in parts {
            match part.split_once('=').unwrap_or((part, "")) {
                ("accept-proxy", "") => listen.accept_proxy = true,
                ("accept-proxy-max", bytes) => {
                    listen.accept_proxy_max = bytes.parse().map_err(|error: UnitError| format!("accept-proxy-max: {error}"))?;
                }
                ("send-proxy", version) => listen.send_proxy = Some(version.parse()?),
                _ if access.take(part)? => {}
                (option, _) => {
                    // Without its value, which may be the rest of a password with a comma.
                    return Err(format!(
                        "unknown listener option {option:?}: expected accept-proxy, accept-proxy-max=SIZE, send-proxy=v2, {}",
                        AccessOptions::EXPECTED
                    ));
                }
            }
        }
        let ListenerAccess { destinations, users } = access.finish()?;
        (listen.destinations, listen.users) = (destinations, users);
        listen.check()?;
        Ok(listen)
    }
}

impl FromStr for BufferSetting {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "unlimited" => Ok(BufferSetting::Unlimited),
            "auto" => Ok(BufferSetting::Auto),
            _ => text.parse().map(BufferSetting::Bytes).map_err(|error: UnitError| format!("{error}, or \"auto\" or \"unlimited\"")),
        }
    }
}

impl fmt::Display for BufferSetting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BufferSetting::Bytes(bytes) => write!(f, "{bytes}"),
            BufferSetting::Unlimited => f.write_str("unlimited"),
            BufferSetting::Auto => f.write_str("auto"),
        }
    }
}
units::impl_text!(BufferSetting, "a size, \"auto\" or \"unlimited\"", "4MiB");

#[cfg(test)]
mod tests {
    use super::*;
    use units::Bytes;

    #[test]
    fn listeners_are_parsed() {
        assert_eq!("transparent=[::]:5000".parse(), Ok(ListenerConfig::transparent("[::]:5000".parse().unwrap())));
        let forward = ListenerConfig::forward("127.0.0.1:80".parse().unwrap(), "[::1]:8080".parse().unwrap());
        assert_eq!("forward=127.0.0.1:80=[::1]:8080".parse(), Ok(forward.clone()));
        assert_eq!(
            "forward=127.0.0.1:80=[::1]:8080,accept-proxy,send-proxy=v2".parse(),
            Ok(ListenerConfig { accept_proxy: true, send_proxy: Some(ProxyVersion::V2), ..forward.clone() })
        );
        assert_eq!(
            "forward=127.0.0.1:80=[::1]:8080,accept-proxy,accept-proxy-max=16KiB".parse(),
            Ok(ListenerConfig { accept_proxy: true, accept_proxy_max: Bytes(16 << 10), ..forward })
        );
        assert_eq!("socks5=[::1]:1080".parse(), Ok(ListenerConfig::socks5("[::1]:1080".parse().unwrap())));
        let wrong = ["5000", "transparent=5000", "forward=127.0.0.1:80", "socks=[::]:1", "socks5=[::]:1,send-proxy=v3"];
        for wrong in wrong.into_iter().chain([
            "transparent=[::]:1,accept-proxy",
            "socks5=[::]:1,accept-proxy-max=16KiB",
            "socks5=[::]:1,accept-proxy,accept-proxy-max=231",
            "socks5=[::]:1,accept-proxy,accept-proxy-max=65552",
        ]) {
            assert!(wrong.parse::<ListenerConfig>().is_err(), "{wrong}");
        }
    }
}
