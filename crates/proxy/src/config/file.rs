//! The configuration file.

use super::{
    check::ProxyConfigError,
    page::PageConfig,
    source::ConfigSource,
    types::{BufferSetting, ListenerConfig, ProxyConfig, ProxyVersion},
};
use crate::flow_records::FlowRecordsConfig;
use intercept::{
    Action, AddressSchema, Destinations, ExperimentShare, ForwardPolicy, LegProfile, LegRule, OneOrList, OpenError, Policy, Prefix, Rule,
    Users, check_secrecy, list, optional_address,
};
use multipath::BondKeys;
use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, de};
use std::{io, net::SocketAddr, path::PathBuf};
use toml_file::{Fault, FileError, LoadError, Sources};
use units::{Bytes, Span};
use web_server::{Token, parse_host_name};

/// A configuration file. The comments are the descriptions of its keys in the documentation.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
struct ConfigFile {
    /// Files whose keys belong here too, one or a list: `["conf.d/*.toml"]`. Paths are relative to
    /// this file; those of a pattern are sorted. Tables and lists of tables, such as rules, are
    /// joined: those of included files first. Any other key may be set only once.
    #[serde(deserialize_with = "list")]
    #[schemars(with = "OneOrList<String>")]
    include: Vec<String>,
    /// Worker threads.
    #[schemars(extend("default" = 1))]
    threads: Option<usize>,
    /// B, the payload that is held at most in each direction of a connection: a size; `"auto"`, B
    /// follows each flow; or `"unlimited"`.
    #[schemars(extend("default" = "auto"))]
    buffer: Option<BufferSetting>,
    /// The largest B of `buffer = "auto"`, which alone has one. Absent: 16 MiB, or less if the
    /// maximum of `net.ipv4.tcp_rmem` is.
    buffer_max: Option<Bytes>,
    /// Time that a dialled leg may take to connect, unless its profile says otherwise. All addresses
    /// of a name have it together.
    #[schemars(extend("default" = "30s"))]
    connect_timeout: Option<Span>,
    /// Time without progress after which a connection is reset. Absent: never.
    idle_timeout: Option<Span>,
    /// Connections at once; more pass unsplit. Absent: as many as open files allow.
    max_flows: Option<usize>,
    /// What all connections together may take. Absent: what the kernel's mark (the second value of
    /// `net.ipv4.tcp_mem`) and the control group leave, which limit in any case.
    memory: Option<Bytes>,
    /// Whether the proxy installs the firewall rules that bring it traffic. `false`: the operator's
    /// own do.
    #[schemars(extend("default" = true))]
    install_rules: Option<bool>,
    /// Whether the forward chains of other programs decide what is split.
    #[schemars(extend("default" = "heed"))]
    forward_policy: Option<ForwardPolicy>,
    /// Share of the connections that would be split which passes unsplit, chosen by chance: the
    /// times of these and of as many split ones are compared (`tandem experiment`). Absent: none.
    experiment: Option<ExperimentShare>,
    /// Whether each flow is logged at its end.
    #[schemars(extend("default" = true))]
    log_flows: Option<bool>,
    /// Name of the proxy for `tandem flows --name` and the like.
    #[schemars(extend("default" = "default"))]
    name: Option<String>,
    /// Address at which metrics for Prometheus are served. Absent: nowhere.
    #[serde(deserialize_with = "optional_address")]
    #[schemars(with = "Option<AddressSchema>")]
    metrics: Option<SocketAddr>,
    /// Names of this host under which metrics and the page are served, one or a list, besides its
    /// addresses and `localhost`; for metrics also besides its own host name. Requests for other
    /// names are refused, which may come from foreign web pages (DNS rebinding).
    #[serde(deserialize_with = "list")]
    #[schemars(with = "OneOrList<String>")]
    host_names: Vec<String>,
    /// The live page, for a browser. Absent: there is none.
    page: Option<PageKeys>,
    /// Listeners, at least one.
    listen: Vec<ListenerConfig>,
    /// Profile of accepted legs that no `[[leg]]` matches.
    near: LegProfile,
    /// Profile of dialled legs that no `[[leg]]` matches.
    far: LegProfile,
    /// Profiles of legs by interface or prefix, or for rules that name them. The first that matches
    /// a leg is its profile, whichever end opened the connection.
    leg: Vec<LegRule>,
    /// What is split, and what is not: the first rule that matches a connection decides. If none
    /// does, it is split, over the bond if there are networks for one.
    rule: Vec<Rule>,
    /// The bond that far legs are, or whose streams come out of a listener.
    bond: Option<BondKeys>,
    /// Where a record of each flow goes at its end. Absent: nowhere.
    flow_records: Option<FlowRecordsConfig>,
}

/// The live page.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct PageKeys {
    /// Address at which the page is served; that of `metrics` is possible too. Other hosts reach an
    /// address off the loopback, which therefore needs a token.
    #[serde(default, deserialize_with = "optional_address")]
    #[schemars(with = "AddressSchema")]
    listen: Option<SocketAddr>,
    /// File whose first line is the token that a browser must have, not readable by others. Absent:
    /// every local user can see the page.
    token_file: Option<PathBuf>,
    /// The token itself, in place of a file: `"${NAME}"` of the environment, or in a file that
    /// others cannot read.
    #[serde(default, deserialize_with = "token")]
    #[schemars(with = "Option<String>", extend("writeOnly" = true))]
    token: Option<Token>,
}

/// Reads a token. Its error does not have the token.
fn token<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Token>, D::Error> {
    Token::parse(&String::deserialize(deserializer)?).map(Some).map_err(de::Error::custom)
}

/// The JSON Schema of a configuration file.
pub fn config_schema() -> schemars::Schema {
    let mut schema = schemars::generate::SchemaSettings::draft2020_12().into_generator().into_root_schema_for::<ConfigFile>();
    schema.insert("title".into(), "Configuration file of the proxy".into());
    schema
}

/// A configuration, with the settings of the program that runs the proxy.
#[derive(Debug, Clone)]
pub struct Service {
    /// The configuration of the proxy.
    pub config: ProxyConfig,
    /// Name of the proxy for `tandem flows` and the like, unique in its network namespace.
    pub name: String,
    /// Address at which metrics are served; none: nowhere.
    pub metrics: Option<SocketAddr>,
    /// The live page; none: there is none.
    pub page: Option<PageConfig>,
    /// Names under which metrics and the page are served, besides addresses.
    pub host_names: Vec<String>,
    /// The files that this was read from.
    pub source: ConfigSource,
}

impl Default for Service {
    fn default() -> Self {
        Service {
            config: ProxyConfig { log_flows: true, ..ProxyConfig::default() },
            name: "default".into(),
            metrics: None,
            page: None,
            host_names: Vec::new(),
            source: ConfigSource::default(),
        }
    }
}

impl Service {
    /// Reads a configuration file, the files that it includes, and those that it names: the bond's
    /// key and users.
    ///
    /// # Errors
    /// [`ProxyConfigError`] when one of these files cannot be read or used, or others can read a
    /// file with secrets.
    pub fn read(path: &std::path::Path) -> Result<Self, ProxyConfigError> {
        let sources = Sources::read(path).map_err(|error| match error {
            LoadError::Unreadable(why) => ProxyConfigError::Unreadable { path: path.display().to_string(), why },
            LoadError::File(error) => ProxyConfigError::File(error),
        })?;
        let mut service = Self::of(sources).map_err(|error| ProxyConfigError::File(Box::new(error)))?;
        match service.read_named_files() {
            Ok(()) => Ok(service),
            Err(error) => Err(service.hide_in(error)),
        }
    }

    /// Reads the files that the configuration names.
    fn read_named_files(&mut self) -> Result<(), ProxyConfigError> {
        if let Some(bond) = &mut self.config.bond {
            bond.read_key()?;
        };
        self.source.files_with_secrets().into_iter().try_for_each(check_secrecy)?;
        self.config.read_users()?;
        if let Some(page) = &mut self.page {
            page.read()?;
        }
        Ok(())
    }

    /// Checks the configuration, as [`ProxyConfig::check`] does.
    ///
    /// # Errors
    /// Why it cannot work, without values of variables of the environment.
    pub fn check(&self) -> Result<(), ProxyConfigError> {
        self.config.check().map_err(|error| self.hide_in(error))
    }

    /// A message about this configuration without values of variables of the environment, which may
    /// be secrets: it has their names.
    pub fn hide(&self, message: &impl std::fmt::Display) -> String {
        self.source.hide_variables(&message.to_string())
    }

    fn hide_in(&self, error: ProxyConfigError) -> ProxyConfigError {
        let (shown, hidden) = (error.to_string(), self.hide(&error));
        if shown == hidden { error } else { ProxyConfigError::Hidden(hidden) }
    }

    /// The addresses of the program's web servers, and what each serves.
    pub fn web_addresses(&self) -> Vec<(&'static str, SocketAddr)> {
        let page = self.page.as_ref().map(|page| page.listen).filter(|at| Some(*at) != self.metrics);
        let metrics = self.metrics.map(|at| ("serve metrics at", at));
        metrics.into_iter().chain(page.map(|at| ("serve the page at", at))).collect()
    }

    /// For `map_err`: the web server at this address, one of [`web_addresses`](Self::web_addresses),
    /// cannot be opened.
    pub fn web_failure(&self, at: SocketAddr, why: io::Error) -> OpenError {
        if self.metrics == Some(at) { OpenError::metrics(at, why) } else { OpenError::page(at, why) }
    }

    /// The first key, besides those of the configuration, that differs from `other` and cannot be
    /// changed while the proxy runs.
    pub fn needs_restart(&self, other: &Service) -> Option<&'static str> {
        let differs = [
            ("name", self.name != other.name),
            ("metrics", self.metrics != other.metrics),
            ("page", self.page != other.page),
            ("host_names", self.host_names != other.host_names),
        ];
        differs.iter().find(|(_, differs)| *differs).map(|(key, _)| *key)
    }

    /// Parses the text of a configuration file. `origin` is its name in errors. Files that it
    /// includes, the bond's key and files of users are not read.
    ///
    /// # Errors
    /// [`FileError`] with the line and the key that is wrong.
    pub fn parse(text: &str, origin: &str) -> Result<Self, FileError> {
        Self::of(Sources::of_text(text, origin)?)
    }

    fn of(sources: Sources) -> Result<Self, FileError> {
        let source = ConfigSource::new(sources)?;
        let file = toml_file::deserialize(source.values().clone().into(), |_| &[]);
        let file: Result<ConfigFile, Fault> = file.and_then(|file: ConfigFile| file.check().map(|()| file));
        let file = file.map_err(|fault| source.error(fault))?;
        let mut service = Service { source, ..Service::default() };
        let config = &mut service.config;
        config.listen = file.listen;
        let (bond, networks) = file.bond.as_ref().and_then(|keys| keys.read().ok()).unzip();
        config.policy = Policy { rules: file.rule, legs: file.leg, near: file.near, far: file.far };
        config.networks = networks.unwrap_or_default();
        config.bond = bond;
        config.set_buffer(file.buffer.unwrap_or(BufferSetting::Auto), file.buffer_max);
        config.threads = file.threads.unwrap_or(config.threads);
        config.connect_timeout = file.connect_timeout.map_or(config.connect_timeout, Span::duration);
        config.idle_timeout = file.idle_timeout.map(Span::duration);
        config.max_flows = file.max_flows;
        config.memory = file.memory;
        config.install_rules = file.install_rules.unwrap_or(config.install_rules);
        config.forward_policy = file.forward_policy.unwrap_or(config.forward_policy);
        config.experiment = file.experiment;
        config.log_flows = file.log_flows.unwrap_or(config.log_flows);
        config.flow_records = file.flow_records;
        service.name = file.name.unwrap_or(service.name);
        service.metrics = file.metrics;
        service.host_names = file.host_names;
        service.page = file.page.and_then(|page| Some(PageConfig { token: page.token, ..PageConfig::new(page.listen?, page.token_file) }));
        Ok(service)
    }
}

impl ProxyConfig {
    /// Reads the listeners' files of users, again if they have been read before.
    ///
    /// # Errors
    /// When a file cannot be read, others can read it too, or it has no users.
    pub fn read_users(&mut self) -> Result<(), ProxyConfigError> {
        Ok(self.listen.iter_mut().try_for_each(|listen| listen.users.read())?)
    }
}

impl ConfigFile {
    /// Finds keys that contradict each other.
    ///
    /// # Errors
    /// The key, and what is wrong with it.
    fn check(&self) -> Result<(), Fault> {
        let need = |ok: bool, path: String, message: &str| if ok { Ok(()) } else { Err(Fault::new(path, message)) };
        need(self.threads != Some(0), "threads".into(), "is 0: give at least 1")?;
        let has_max = self.buffer_max.is_none() || matches!(self.buffer, None | Some(BufferSetting::Auto));
        need(has_max, "buffer_max".into(), "applies only to buffer = \"auto\": leave it out, or set that")?;
        let has_address = self.page.as_ref().is_none_or(|page| page.listen.is_some());
        need(has_address, "page".into(), "has no address: add listen = \"127.0.0.1:9155\"")?;
        for (index, name) in self.host_names.iter().enumerate() {
            parse_host_name(name).map_err(|why| Fault::new(format!("host_names[{index}]"), why))?;
        }
        let has_both = self.page.as_ref().is_some_and(|page| page.token.is_some() && page.token_file.is_some());
        need(!has_both, "page.token".into(), "is there beside token_file: leave one of them out")?;
        let networks = self.bond.as_ref().map_or(Ok(Vec::new()), |keys| keys.read().map(|(_, networks)| networks));
        let networks = networks.map_err(|(path, why)| Fault::new(path, &why))?;
        let listens = self.listen.iter().position(ListenerConfig::takes_streams);
        if let Some(index) = listens.filter(|_| self.bond.is_none()) {
            need(false, format!("listen[{index}]"), "is a listener for a bond, but the file has no [bond]: add one with key_file")?;
        }
        for (index, leg) in self.leg.iter().enumerate() {
            need(
                leg.name.is_some() || !leg.to.is_empty() || !leg.interface.is_empty(),
                format!("leg[{index}]"),
                "matches no leg: give it an interface, a prefix (to), or a name that a rule refers to",
            )?;
            need(
                leg.name.is_none() || self.leg[..index].iter().all(|other| other.name != leg.name),
                format!("leg[{index}].name"),
                "is the name of two legs: give each its own",
            )?;
        }
        for (index, rule) in self.rule.iter().enumerate() {
            need(
                rule.action != Action::Carry || !networks.is_empty(),
                format!("rule[{index}].action"),
                "is \"bond\", but the file has no [[bond.network]]: add at least one",
            )?;
            need(
                rule.quic.is_none() || rule.ports.is_empty() || rule.ports.iter().any(|ports| ports.first <= 443 && 443 <= ports.last),
                format!("rule[{index}].quic"),
                "applies to UDP port 443, which ports do not have: add 443, or leave ports out",
            )?;
            for (key, name) in [("near", &rule.near), ("far", &rule.far)] {
                let Some(name) = name else { continue };
                let path = format!("rule[{index}].{key}");
                need(
                    rule.action == Action::Split,
                    path.clone(),
                    "applies only to connections that are split, but this rule's action is another: leave it out",
                )?;
                let known: Vec<&str> = self.leg.iter().filter_map(|leg| leg.name.as_deref()).collect();
                let message = format!("no [[leg]] is named {name:?}: expected one of {}", known.join(", "));
                need(known.contains(&name.as_str()), path, &message)?;
            }
        }
        Ok(())
    }
}

/// A listener. Exactly one of `transparent`, `forward`, `socks5` and `bond` says where it listens,
/// and how the destination of a connection is known.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct ListenKeys {
    /// Address for connections that are routed through this host: they go on to where they were
    /// going, from the client's address. `[::]` stands for both families.
    #[serde(default, deserialize_with = "optional_address")]
    #[schemars(with = "Option<AddressSchema>")]
    transparent: Option<SocketAddr>,
    /// Address for connections that go on to `to`, from the proxy's address.
    #[serde(default, deserialize_with = "optional_address")]
    #[schemars(with = "Option<AddressSchema>")]
    forward: Option<SocketAddr>,
    /// Address for clients that name their destination by SOCKS version 5 (CONNECT).
    #[serde(default, deserialize_with = "optional_address")]
    #[schemars(with = "Option<AddressSchema>")]
    socks5: Option<SocketAddr>,
    /// Address for the connections of another host's bond, whose streams come out here. Needs
    /// `[bond]`.
    #[serde(default, deserialize_with = "optional_address")]
    #[schemars(with = "Option<AddressSchema>")]
    bond: Option<SocketAddr>,
    /// Destination of the connections of `forward`.
    #[serde(default, deserialize_with = "optional_address")]
    #[schemars(with = "Option<AddressSchema>")]
    to: Option<SocketAddr>,
    /// `forward`, `socks5`: whether each connection begins with a PROXY protocol header, of either
    /// version.
    #[serde(default)]
    accept_proxy: bool,
    /// The longest PROXY protocol header that is accepted, with its extensions (such as a client's
    /// certificate), which are discarded. Version 2 allows no more than 65551 bytes.
    #[schemars(extend("default" = "65551B"))]
    accept_proxy_max: Option<Bytes>,
    /// `forward`, `socks5`, `bond`: version of the PROXY protocol header that far legs begin with. It
    /// names the client and the address that the client connected to: the listener's own, or that of
    /// the header that was accepted; at a `bond`, the address that the stream goes to. Absent: none.
    send_proxy: Option<ProxyVersion>,
    /// `socks5`: prefixes of the only destinations that clients may name, one or a list. Absent:
    /// all but this host and link-local addresses.
    #[serde(default, deserialize_with = "list")]
    #[schemars(with = "OneOrList<Prefix>")]
    allow: Vec<Prefix>,
    /// `socks5`: prefixes of destinations that are refused, whatever `allow` says.
    #[serde(default, deserialize_with = "list")]
    #[schemars(with = "OneOrList<Prefix>")]
    deny: Vec<Prefix>,
    /// `socks5`: the users, a file with one `NAME:PASSWORD` a line, or a list of these. Absent:
    /// every client.
    #[serde(default)]
    users: Users,
}

impl JsonSchema for ListenerConfig {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Listen".into()
    }

    fn json_schema(generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
        ListenKeys::json_schema(generator)
    }
}

impl<'de> Deserialize<'de> for ListenerConfig {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let keys = ListenKeys::deserialize(deserializer)?;
        let mut listen = match (keys.transparent, keys.forward, keys.socks5, keys.bond, keys.to) {
            (Some(at), None, None, None, None) => ListenerConfig::transparent(at),
            (None, Some(at), None, None, Some(to)) => ListenerConfig::forward(at, to),
            (None, None, Some(at), None, None) => ListenerConfig::socks5(at),
            (None, None, None, Some(at), None) => ListenerConfig::bond(at),
            _ => {
                return Err(de::Error::custom(
                    "needs exactly one of transparent = \"[::]:5000\", forward = \"HERE:PORT\" with to = \"THERE:PORT\", socks5 = \"HERE:PORT\" \
                     and bond = \"HERE:PORT\"",
                ));
            }
        };
        (listen.accept_proxy, listen.send_proxy) = (keys.accept_proxy, keys.send_proxy);
        listen.accept_proxy_max = keys.accept_proxy_max.unwrap_or(listen.accept_proxy_max);
        listen.destinations = Destinations { allow: keys.allow, deny: keys.deny };
        listen.users = keys.users;
        listen.check().map_err(de::Error::custom)?;
        Ok(listen)
    }
}

#[cfg(test)]
mod tests {
    use super::super::types::ListenMode;
    use super::*;
    use intercept::leg;

    const FILE: &str = include_str!("../../tests/proxy.toml");

    #[test]
    fn the_documentation_shows_the_example_file() {
        assert!(include_str!("../../../../docs/operation.md").contains(FILE), "docs/operation.md and tests/proxy.toml differ");
    }

    #[test]
    fn every_key_is_read() {
        let service = Service::parse(FILE, "proxy.toml").unwrap();
        let at = "127.0.0.1:9155".parse().unwrap();
        assert_eq!((service.name.as_str(), service.metrics), ("gateway", Some(at)));
        assert_eq!(service.host_names, ["gateway.lan"]);
        assert_eq!(service.web_addresses(), [("serve metrics at", at)]);
        assert_eq!(service.page, Some(PageConfig::new(at, Some("/etc/tandem/page.token".into()))));
        let config = service.config;
        assert_eq!((config.threads, config.buffer.most(), config.max_flows), (2, Some(Bytes(16 << 20)), Some(9000)));
        assert_eq!(config.experiment.map(ExperimentShare::one_in), Some(50));
        assert_eq!(config.listen.len(), 4);
        assert_eq!((config.listen[3].mode, config.networks.len()), (ListenMode::Bond, 2));
        assert_eq!(config.flow_records.as_ref().map(ToString::to_string).as_deref(), Some("the file /var/log/tandem/flows.json"));
        let bond = config.bond.unwrap();
        assert_eq!((bond.tls, bond.spares, bond.connection_window), (true, 2, Some(Bytes(4 << 20))));
        assert_eq!((config.networks[1].name.as_str(), config.networks[1].tier), ("mobile", 1));
        assert_eq!(config.listen[1].send_proxy, Some(ProxyVersion::V2));
        assert_eq!(config.policy.legs[0].profile.dscp, Some(leg::Dscp::Set(18)));
        assert_eq!(config.policy.rules[0].action, Action::Bypass);
        assert_eq!(config.policy.rules[1].far.as_deref(), Some("gentle"));
    }

    #[test]
    fn errors_name_line_and_key() {
        let wrong = |from: &str, to: &str| {
            assert!(FILE.contains(from), "{from}");
            Service::parse(&FILE.replacen(from, to, 1), "proxy.toml").unwrap_err().to_string()
        };
        let cases = [
            ("threads         = 2", "treads = 2", "treads: is not a key here: did you mean threads? The keys are include, threads, "),
            ("buffer          = \"auto\"", "buffer = \"4MiB\"", "buffer_max: applies only to buffer = \"auto\": leave it out"),
            ("\"af21\"", "\"af51\"", "leg[1].dscp: cannot parse DSCP \"af51\": write "),
            ("far   = \"gentle\"", "far   = \"genlte\"", "rule[2].far: no [[leg]] is named \"genlte\": expected one of gentle"),
            ("action = \"bypass\"", "action = \"bipass\"", "rule[1].action: cannot be \"bipass\": did you mean \"bypass\"?"),
            ("listen     = \"127.0.0.1:9155\"", "", "page: has no address: add listen"),
            ("\"score\"", "\"scor\"", "bond.scheduler: unknown scheduler \"scor\""),
            ("interface = \"wlan0\"", "", "bond.network[1]: has neither an interface nor a source address"),
            ("key_file  = \"/etc/tandem/bond.key\"", "", "bond: has no key_file"),
            ("\"1 in 50\"", "\"2%\"", "experiment: cannot parse share \"2%\": write \"1 in N\""),
            ("[\"gateway.lan\"]", "\"gateway:9155\"", "host_names[1]: \"gateway:9155\" is not the name of a host: write a name"),
            ("\"10.0.0.0/8\"", "\"10.0.0.0/80\"", "cannot parse address prefix \"10.0.0.0/80\""),
            ("to      = \"192.0.2.10:80\"", "", "listen[2]: needs exactly one of transparent"),
            ("file     = \"/var/log", "unix = \"/var/log", "flow_records: max_size and keep are for records in a file: leave them out"),
        ];
        for (from, to, said) in cases {
            let error = wrong(from, to);
            assert!(error.starts_with("proxy.toml:") && error.contains(said), "{error}");
        }
    }

    #[test]
    fn errors_have_the_names_of_variables() {
        // PATH is a variable that every test has.
        let value = std::env::var("PATH").unwrap();
        let error = |text: &str| {
            let service = Service::parse(text, "proxy.toml").unwrap();
            service.check().unwrap_err().to_string()
        };
        let listen = "[[listen]]\nforward = \"127.0.0.1:1\"\nto = \"127.0.0.1:9\"\n";
        for (text, key) in [("[near]\ncontrol = \"${PATH}\"\n", "control"), ("[[leg]]\nto = \"::/0\"\ncontrol = \"td_${PATH}\"\n", "leg")] {
            let said = error(&format!("{listen}{text}"));
            assert!(said.contains("${PATH}") && !said.contains(&value), "{key}: {said}");
        }
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("proxy.toml");
        std::fs::write(&file, format!("{listen}[[listen]]\nsocks5 = \"127.0.0.1:2\"\nusers = \"/no/${{PATH}}\"\n")).unwrap();
        let said = Service::read(&file).unwrap_err().to_string();
        assert!(said.contains("/no/${PATH}") && !said.contains(&value), "{said}");
    }

    #[test]
    fn keys_that_are_fixed_at_start_need_a_restart() {
        let old = Service::parse(FILE, "old").unwrap().config;
        let new = |from: &str, to: &str| Service::parse(&FILE.replacen(from, to, 1), "new").unwrap().config.needs_restart(&old);
        assert_eq!(new("threads         = 2", "threads = 3"), Some("threads"));
        assert_eq!(new("[::]:5000", "[::]:5001"), Some("listen"));
        assert_eq!(new("\"reno\"", "\"cubic\""), None);
        assert_eq!(new("keep     = 4", "keep = 5"), None);
        assert_eq!(new("\"bbr\"", "\"reno\""), Some("bond.network"));
        assert_eq!(new("\"16MiB\"", "\"8MiB\""), Some("buffer"));
        assert_eq!(new("buffer          = \"auto\"", "buffer = \"auto\""), None);
    }
}
