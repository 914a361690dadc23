//! Takeovers that fail, at each of their stages: the proxy that runs stays in charge.

use super::{connect, refused, restart};
use crate::common::{
    Daemon, TANDEM, control_socket,
    routed::{Routed, SERVER, echoes, rules},
    skip, wait_until,
};
use rustix::{
    fd::OwnedFd,
    net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg},
};
use std::{
    fs,
    io::{IoSliceMut, Read as _, Write as _},
    mem::MaybeUninit,
    os::unix::{fs::PermissionsExt as _, net::UnixStream},
    process::Stdio,
};

/// A process that pretends to take over.
struct Pretender(UnixStream);

impl Pretender {
    fn hello(routed: &Routed, protocol: u32) -> Self {
        let stream = UnixStream::connect(control_socket(&routed.router, "default")).unwrap();
        stream.set_read_timeout(Some(crate::common::PATIENCE)).unwrap();
        writeln!(&stream, "{{\"take_over\":{{\"protocol\":{protocol},\"version\":\"9.9\",\"pid\":1}}}}").unwrap();
        Pretender(stream)
    }

    /// Receives a message and its descriptors.
    fn receive(&mut self) -> (String, Vec<OwnedFd>) {
        let mut header = [0; 8];
        self.0.read_exact(&mut header).unwrap();
        let number = |part: &[u8]| u32::from_be_bytes(part.try_into().unwrap()) as usize;
        let (length, count) = (number(&header[..4]), number(&header[4..]));
        let mut descriptors = Vec::new();
        while descriptors.len() < count {
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(128))];
            let mut control = RecvAncillaryBuffer::new(&mut space);
            recvmsg(&self.0, &mut [IoSliceMut::new(&mut [0])], &mut control, RecvFlags::CMSG_CLOEXEC).unwrap();
            for message in control.drain() {
                if let RecvAncillaryMessage::ScmRights(received) = message {
                    descriptors.extend(received);
                }
            }
        }
        let mut text = vec![0; length];
        self.0.read_exact(&mut text).unwrap();
        (String::from_utf8(text).unwrap(), descriptors)
    }

    fn send(&mut self, text: &str) {
        self.0.write_all(&(text.len() as u32).to_be_bytes()).unwrap();
        self.0.write_all(&[0; 4]).unwrap();
        self.0.write_all(text.as_bytes()).unwrap();
    }
}

/// The proxy that runs splits, and its rules are what they were.
fn is_in_charge(routed: &Routed, installed: &str) {
    let before = routed.verdicts();
    SERVER.iter().for_each(|server| drop(connect(routed, server)));
    assert_eq!(routed.verdicts(), (before.0 + 2, before.1, before.2));
    assert_eq!(rules(routed), installed);
    assert!(
        routed.tandem(&["bypass", "add", "192.0.2.1"]).status.success()
            && routed.tandem(&["bypass", "remove", "192.0.2.1"]).status.success()
    );
}

#[test]
fn a_process_that_ends_midway_changes_nothing() {
    if skip("a_process_that_ends_midway_changes_nothing", &["nft", "ip"]) {
        return;
    }
    let routed = Routed::new();
    routed.echo(80);
    let mut first = routed.proxy(&[]);
    let installed = rules(&routed);
    let mut kept = connect(&routed, SERVER[0]);
    let failed = |count: usize, why: &str| {
        wait_until(why, || routed.log().matches("the takeover has failed, and this process goes on: ").count() == count);
        assert!(routed.log().contains(why), "{}", routed.log());
        is_in_charge(&routed, &installed);
    };

    let mut other = Pretender::hello(&routed, 999);
    let (said, _) = other.receive();
    assert!(said.contains("refused") && said.contains("(version 9.9) speaks version 999 of the takeover's protocol"), "{said}");
    failed(1, "stop this proxy and start the new one");

    // It ends when it has the listening sockets.
    let mut early = Pretender::hello(&routed, 1);
    let (offer, sockets) = early.receive();
    assert!(offer.starts_with("{\"offer\":") && sockets.len() == 2, "{offer}");
    // Meanwhile there is no second takeover.
    let (busy, _) = Pretender::hello(&routed, 1).receive();
    assert!(busy.contains("another takeover is in progress"), "{busy}");
    drop((early, sockets));
    failed(2, "the new process ended before it was ready");

    let mut unable = Pretender::hello(&routed, 1);
    unable.receive();
    unable.send("{\"failed\":\"a reason of its own\"}");
    failed(3, "a reason of its own");

    // It ends when it has everything, in the middle of a command to the owner of the table, whose
    // answer to another command it has not read.
    let mut late = Pretender::hello(&routed, 1);
    drop(late.receive());
    late.send("\"ready\"");
    let (charge, descriptors) = late.receive();
    assert!(charge.starts_with("{\"yours\":") && descriptors.len() == 5, "{charge}");
    let mut owner = fs::File::from(descriptors.into_iter().next().unwrap());
    owner.write_all(b"flush chain inet tandem open\nno such command\nflush table inet tan").unwrap();
    drop((late, owner));
    failed(4, "the new process ended before it was in charge");

    // After all that a takeover succeeds.
    assert!(echoes(&mut kept));
    drop(kept);
    let (second, _) = restart(&routed);
    super::ends(&mut first);
    is_in_charge(&routed, &installed);
    second.stop();
}

#[test]
fn a_silent_process_is_given_up() {
    if skip("a_silent_process_is_given_up", &["nft", "ip"]) {
        return;
    }
    let routed = Routed::new();
    routed.echo(80);
    let _first = routed.proxy(&[]);
    let installed = rules(&routed);
    let mut silent = Pretender::hello(&routed, 1);
    silent.receive();
    is_in_charge(&routed, &installed);
    let why = "the new process did not answer in time before it was ready";
    wait_until(why, || routed.log().contains(why));
    let (said, _) = silent.receive();
    assert!(said.contains("refused"), "{said}");
    is_in_charge(&routed, &installed);
}

#[test]
fn a_process_that_cannot_start_says_why() {
    if skip("a_process_that_cannot_start_says_why", &["nft", "ip", "setpriv"]) {
        return;
    }
    let routed = Routed::new();
    routed.echo(80);
    let listener = "[[listen]]\ntransparent = \"[::]:5000\"\n";
    let path = routed.write(listener);
    let take_over = ["proxy", "-c", path.to_str().unwrap(), "--take-over"];
    let fails = |status: i32, expected: &str| {
        let output = routed.tandem(&take_over);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(status), "{said}");
        assert!(said.contains(expected), "{said}");
    };
    fails(1, "no proxy named \"default\" runs in this network namespace");
    let _first = routed.start(&["-c", path.to_str().unwrap()]);
    let installed = rules(&routed);

    // A configuration that cannot be used.
    routed.write(&format!("treads = 2\n{listener}"));
    let said = refused(&routed);
    assert!(said.contains("proxy.toml:1: treads: is not a key here"), "{said}");
    fails(2, "treads: is not a key here");
    is_in_charge(&routed, &installed);

    // One that cannot work at the moment: another program listens there.
    let taken = "[[listen]]\nforward = \"127.0.0.1:7000\"\nto = \"127.0.0.1:9\"\n";
    let _other = routed.router.enter(|| std::net::TcpListener::bind("127.0.0.1:7000").unwrap()).unwrap();
    routed.write(&format!("{listener}{taken}"));
    let said = refused(&routed);
    assert!(said.contains("cannot listen on 127.0.0.1:7000"), "{said}");
    assert!(routed.log().contains("this process goes on: cannot listen on 127.0.0.1:7000"), "{}", routed.log());
    is_in_charge(&routed, &installed);

    // Another name, under which no proxy runs.
    routed.write(&format!("name = \"other\"\n{listener}"));
    let said = refused(&routed);
    assert!(said.contains("ended before it was ready") && routed.log().contains("no proxy named \"other\" runs"), "{said}");
    // No firewall rules any more.
    routed.write("[[listen]]\nforward = \"127.0.0.1:7001\"\nto = \"127.0.0.1:9\"\n");
    let said = refused(&routed);
    assert!(said.contains("firewall rules") && said.contains("cannot be changed by a takeover"), "{said}");
    is_in_charge(&routed, &installed);

    // Another user.
    let directory = tempfile::tempdir().unwrap();
    fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let program = directory.path().join("tandem");
    testing::copy_program(TANDEM, &program);
    for arguments in [&["proxy", "--listen", "transparent=[::]:5000", "--take-over"][..], &["restart"]] {
        let nobody = ["--reuid=65534", "--regid=65534", "--clear-groups"];
        let output = routed.router.command("setpriv").args(nobody).arg(&program).args(arguments).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && said.contains("only root and the proxy's own user may"), "{said}");
    }
    is_in_charge(&routed, &installed);
}

#[test]
fn a_process_gives_up_when_the_one_that_ran_is_killed() {
    if skip("a_process_gives_up_when_the_one_that_ran_is_killed", &["nft", "ip"]) {
        return;
    }
    let routed = Routed::new();
    routed.echo(80);
    let mut first = routed.proxy(&[]);
    // It is stopped, so that the takeover begins but does not proceed.
    first.signal("STOP");
    let mut command = routed.router.command(TANDEM);
    command.args(["proxy", "--listen", "transparent=[::]:5000", "--take-over"]).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut next = Daemon(command.spawn().unwrap());
    let connected = || {
        let listed = routed.router.command("ss").args(["-Hxp"]).output().unwrap();
        String::from_utf8_lossy(&listed.stdout).lines().any(|line| line.contains(&format!("pid={},", next.0.id())))
    };
    wait_until("it is connected", connected);
    first.0.kill().unwrap();
    first.0.wait().unwrap();
    let mut said = String::new();
    next.0.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    assert_eq!(next.0.wait().unwrap().code(), Some(1), "{said}");
    assert!(said.contains("cannot take over: the exchange with the proxy that runs failed"), "{said}");
    wait_until("the rules are gone", || rules(&routed).is_empty());
    SERVER.iter().for_each(|server| drop(connect(&routed, server)));
    // As after any crash, a start works.
    let second = routed.proxy(&[]);
    connect(&routed, SERVER[0]);
    assert_eq!(routed.verdicts(), (1, 0, 0));
    drop(second);
}
