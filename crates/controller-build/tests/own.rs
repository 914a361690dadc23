//! Headers are built, and the controllers decide in the interpreter and in the kernel as they do
//! natively. What is wrong with a header is said with its line and the cure.

use control::{Controller, ControllerState, Event, EventKind, FlowState, LinkRecord};
use controller_build::{BuildError, Built, Draft, RandomConnection};
use std::{fs, path::Path};

/// Whether a test must be skipped, because there is no clang.
fn skip(test: &str) -> bool {
    let missing = testing::missing(&["clang"]);
    missing.inspect(|clang| testing::skipped(test, &format!("{clang} is not installed"))).is_some()
}

/// Builds the header with this text.
fn build(directory: &Path, name: &str, text: &str) -> Result<Built, BuildError> {
    let header = directory.join(format!("{name}.h"));
    fs::write(&header, text).unwrap();
    controller_build::build(&header, &directory.join("built"))
}

/// Builds the header with this text, and reads the result.
fn built(directory: &Path, name: &str, text: &str) -> Controller {
    let built = build(directory, name, text).unwrap_or_else(|error| panic!("{name}: {error}"));
    if let Some(why) = &built.unverified {
        testing::skipped("the kernel's verifier", why);
    }
    assert_eq!(built.warnings, "", "{name}");
    Controller::find(built.file.to_str().unwrap()).unwrap().unwrap()
}

/// The complete example of the documentation.
fn example() -> String {
    let page = include_str!("../../../docs/how-to/own-controller.md");
    let (_, rest) = page.split_once("```c\n").unwrap();
    rest.split_once("```").unwrap().0.to_owned()
}

/// The header of a controller of Tandem under another name.
fn renamed(controller: Controller, name: &str) -> String {
    let of = controller.name();
    let owns = u32::from(controller.owns_window());
    let aliases = ["", "_state", "_tunables", "_WANTS", "_TUNABLES"].map(|part| format!("#define td_{name}{part} td_{of}{part}\n"));
    format!("#include \"{of}.h\"\n{}#define td_{of}_TEXT \"{of}\"\n#define td_{name}_OWNS_WINDOW {owns}\n", aliases.concat())
}

/// Asserts that two controllers decide alike on random events, with a link record or without.
fn must_decide_alike(own: Controller, native: Controller, has_link: bool) {
    let mut at = RandomConnection::new(11);
    let (mut flow, mut link) = (at.flow, at.link);
    let begin = |controller: Controller, flow: &mut FlowState, link: &mut LinkRecord| -> ControllerState {
        controller.begin(flow, has_link.then_some(link), 1_000_000)
    };
    let mut interpreted = begin(own, &mut flow, &mut link);
    let mut state = begin(native, &mut at.flow, &mut at.link);
    for number in 0..=3000 {
        let event = if number < 3000 { at.next_event() } else { at.last_event() };
        (flow, link) = (at.flow, at.link);
        interpreted.step(&mut flow, has_link.then_some(&mut link), &event);
        state.step(&mut at.flow, has_link.then_some(&mut at.link), &event);
        let place = format!("{native:?} at event {number}, link {has_link}: {event:?}");
        assert_eq!(flow, at.flow, "{place}");
        assert_eq!(link, at.link, "{place}");
        assert_eq!(interpreted.words(), state.words(), "{place}");
        at.bound_window();
    }
}

#[test]
fn the_example_of_the_documentation_is_newreno_at_its_defaults() {
    if skip("the_example_of_the_documentation_is_newreno_at_its_defaults") {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let aimd = built(directory.path(), "aimd", &example());
    assert_eq!((aimd.name(), aimd.description(), aimd.owns_window()), ("aimd", "AIMD with fixed gains", false));
    let tunables: Vec<_> = aimd.tunables().map(|tunable| (tunable.name, tunable.default, tunable.range)).collect();
    assert_eq!(tunables, [("add", 1, 1..=100), ("keep_milli", 500, 100..=999)]);
    must_decide_alike(aimd, Controller::named("reno").unwrap(), false);

    // Eight times as fast: from a window of 100, a round trip adds 8.
    let fast = aimd.tuned(&[("add", 8)]).unwrap();
    let mut flow = FlowState { mss: 1448, cwnd: 100, ssthresh: 50, ..FlowState::default() };
    let mut state = fast.begin(&mut flow, None, 0);
    for _ in 0..10 {
        let event = Event { kind: EventKind::Ack, flags: control::CWND_LIMITED, acked: 10, ..Event::default() };
        state.step(&mut flow, None, &event);
    }
    assert_eq!(flow.cwnd, 108);
}

#[test]
fn the_interpreter_decides_as_the_native_build_of_every_controller() {
    if skip("the_interpreter_decides_as_the_native_build_of_every_controller") {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    for (number, native) in Controller::all().enumerate() {
        let name = format!("own{number}");
        let header = directory.path().join(format!("{name}.h"));
        fs::write(&header, renamed(native, &name)).unwrap();
        // Without the verifier, which takes a minute for all of them; a test of crate `kernel` asks
        // it.
        let Draft { controller: own, warnings, .. } =
            controller_build::draft(&header).unwrap_or_else(|error| panic!("{native:?}: {error}"));
        assert_eq!(warnings, "", "{native:?}");
        for has_link in [false, true] {
            must_decide_alike(own, native, has_link);
        }
    }
}

#[test]
fn the_kernel_decides_as_the_interpreter() {
    const TEST: &str = "the_kernel_decides_as_the_interpreter";
    if skip(TEST) {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let aimd = built(directory.path(), "aimd_k", &example().replace("aimd", "aimd_k"));
    let tuned = aimd.tuned(&[("add", 5), ("keep_milli", 700)]).unwrap();
    let mut replay = match kernel::Replay::new(tuned) {
        Ok(replay) => replay,
        Err(why @ (kernel::Error::Privilege | kernel::Error::NoBtf | kernel::Error::NoStructOps)) => return testing::skipped(TEST, &why),
        Err(why) => panic!("{why}"),
    };
    let mut at = RandomConnection::new(11);
    let mut flow = at.flow;
    replay.step(&mut flow, None, &Event { now_us: 1_000_000, ..Event::default() }).unwrap();
    let mut state = tuned.begin(&mut at.flow, None, 1_000_000);
    for number in 0..2000 {
        let event = at.next_event();
        flow = at.flow;
        replay.step(&mut flow, None, &event).unwrap();
        state.step(&mut at.flow, None, &event);
        assert_eq!(flow, at.flow, "at event {number}: {event:?}");
        assert_eq!(replay.words(), state.words(), "at event {number}: {event:?}");
        at.bound_window();
    }
}

/// A header with a function that has this body.
fn with_body(name: &str, before: &str, body: &str) -> String {
    format!(
        "#include \"intf.h\"\n{before}\nstruct td_{name}_state {{ u32 count; u32 more; }};\n#define td_{name}_WANTS 0\n\
         #define td_{name}_TUNABLES(T) T(gain, 1, 0, 9, \"gain\")\nTD_CONTROLLER({name});\n\
         TD_INLINE void td_{name}(struct td_flow *f, struct td_{name}_state *s, struct td_link *l, const struct td_event *e,\n\
         const struct td_{name}_tunables *t)\n{{\n{body}\n}}\n"
    )
}

#[test]
fn wrong_headers_are_refused_with_the_line_and_the_cure() {
    if skip("wrong_headers_are_refused_with_the_line_and_the_cure") {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let refused = |text: &str, parts: &[&str]| {
        let error = build(directory.path(), "bad", text).expect_err(text).to_string();
        assert!(parts.iter().all(|part| error.contains(part)), "{parts:?}: {error}");
        assert!(!directory.path().join("built/bad.ctl").exists(), "{error}");
    };
    let body = |body: &str| with_body("bad", "", body);
    refused(&body("f->cwnd = 1"), &["bad.h:10:", "expected ';'", "cannot compile", "clang reports"]);
    refused(&body("f->window = 1;"), &["bad.h:10:", "no member named 'window'"]);
    refused(&body("grow(f);"), &["bad.h:10:", "implicit declaration of function 'grow'"]);
    refused("#include \"intf.h\"\n", &["the header does not define td_bad_WANTS: #define td_bad_WANTS 0"]);
    refused(&body("").replace("td_bad_TUNABLES", "td_bed_TUNABLES"), &["the header does not define td_bad_TUNABLES"]);
    refused(&body("").replace("u32 more;", "u32 more[24];"), &["too much state"]);
    refused(&body("").replace("_WANTS 0", "_WANTS TD_WANTS_RATE"), &["#define td_bad_OWNS_WINDOW 1"]);
    refused(&body("").replace("T(gain, 1", "T(gain, 10"), &["a tunable gain whose default 10 is not from 0 to 9"]);
    let counted = with_body("bad", "static u32 calls;", "calls++; f->cwnd = calls;");
    refused(&counted, &["uses a variable or a table outside of its state", "struct td_bad_state"]);
    let called = with_body("bad", "__attribute__((noinline)) static u32 grown(u32 x) { return x + 1; }", "f->cwnd = grown(f->cwnd);");
    refused(&called, &["define functions with TD_INLINE"]);
    refused(&body("f->cwnd = l->capacity / 1000;"), &["outside of its arguments and its stack, by a null pointer perhaps"]);
    let endless = body("while (1) __asm__ volatile(\"\" : : : \"memory\");");
    refused(&endless, &["does not end within a million instructions"]);
    refused(&body("if (e->kind == TD_CLOSE) f->cwnd = l->capacity;"), &["by a null pointer perhaps"]);
}

#[test]
fn the_kernels_verifier_refuses_what_the_trial_does_not_meet() {
    const TEST: &str = "the_kernels_verifier_refuses_what_the_trial_does_not_meet";
    if skip(TEST) {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    // Never true in a trial.
    let text = with_body("rare", "", "if (f->mss == 77) f->cwnd = l->capacity;");
    match build(directory.path(), "rare", &text) {
        Ok(Built { unverified: Some(why), .. }) => testing::skipped(TEST, &why),
        Ok(_) => panic!("the verifier accepts a null pointer"),
        Err(error) => {
            assert!(matches!(error, BuildError::Refused { .. }), "{error}");
            let text = error.to_string();
            assert!(text.contains("rare.h") && text.contains("the verifier: "), "{text}");
        }
    }
}

#[test]
fn names_must_be_those_of_controllers() {
    let directory = tempfile::tempdir().unwrap();
    for (name, part) in [
        ("My", "lower-case letters"),
        ("reno", "has the name of a controller of Tandem"),
        ("htcp", "has the name of a controller of Linux"),
        ("td_my", "leave it out"),
    ] {
        let error = build(directory.path(), name, "").unwrap_err().to_string();
        assert!(error.contains(part), "{error}");
    }
    let error = controller_build::build(&directory.path().join("none.h"), directory.path()).unwrap_err();
    assert!(matches!(error, BuildError::Unreadable { .. }), "{error}");
}

#[test]
fn a_build_that_fails_leaves_the_earlier_one() {
    if skip("a_build_that_fails_leaves_the_earlier_one") {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let first = build(directory.path(), "kept", &with_body("kept", "", "f->cwnd = 7;")).unwrap();
    let before = fs::read(&first.file).unwrap();
    build(directory.path(), "kept", &with_body("kept", "", "f->cwnd = ;")).unwrap_err();
    assert_eq!(fs::read(&first.file).unwrap(), before);
    let second = build(directory.path(), "kept", &with_body("kept", "", "f->cwnd = 8;")).unwrap();
    assert_ne!(second.manifest.build, first.manifest.build);
    assert_ne!(fs::read(&second.file).unwrap(), before);
    // Nothing else is left beside it.
    assert_eq!(fs::read_dir(directory.path().join("built")).unwrap().count(), 1);
}
