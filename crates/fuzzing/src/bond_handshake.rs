//! A bond's handshake with a peer that does not have the key: every forged message is refused, and
//! nothing panics.

use bond::{AcceptHandshake, Announcement, DialHandshake, Families, PresharedKey, VERSION};

/// What the accepting end says of itself.
const OWN: Announcement = Announcement { window: 7, families: Families { ipv4: true, ipv6: false } };

/// Takes `N` bytes; missing bytes are zero.
fn take<const N: usize>(rest: &mut &[u8]) -> [u8; N] {
    let mut bytes = [0; N];
    let here = rest.len().min(N);
    bytes[..here].copy_from_slice(&rest[..here]);
    *rest = &rest[here..];
    bytes
}

/// Plays handshakes with altered and with arbitrary messages.
///
/// # Panics
/// If a forged message is accepted, or a correct one refused.
pub fn bond_handshake(data: &[u8]) {
    let mut rest = data;
    let flips: [u8; 4] = take(&mut rest);
    let (key, binding): (_, [u8; 8]) =
        (PresharedKey::new(b"a secret of thirty-two bytes, two").expect("it is long enough"), take(&mut rest));
    let (dialled, mut hello) = DialHandshake::new(&key, VERSION, [1; 32], &binding);
    // Correct messages are accepted; a single flipped bit is not.
    let (accepted, mut challenge) = AcceptHandshake::new(&key, &hello, [2; 32], &binding, OWN).expect("it has the key");
    let (mut proof, window) = dialled.finish(&challenge, 9).expect("it has the key");
    assert_eq!((window, accepted.finish(&proof).expect("it has the key")), (OWN, 9));
    let flip = |bytes: &mut [u8], which: u8| {
        let bit = usize::from(which) * 4 % (bytes.len() * 8);
        bytes[bit / 8] ^= 1 << (bit % 8);
    };
    let (whole, asked) = (hello, challenge);
    flip(&mut hello, flips[0]);
    assert!(AcceptHandshake::new(&key, &hello, [2; 32], &binding, OWN).is_err());
    flip(&mut challenge, flips[1]);
    assert!(DialHandshake::new(&key, VERSION, [1; 32], &binding).0.finish(&challenge, 9).is_err());
    flip(&mut proof, flips[2]);
    let (accepted, again) = AcceptHandshake::new(&key, &whole, [2; 32], &binding, OWN).expect("it has the key");
    assert!(again == asked && accepted.finish(&proof).is_err());
    // Arbitrary messages.
    assert!(AcceptHandshake::new(&key, &take(&mut rest), [2; 32], &binding, OWN).is_err());
    assert!(DialHandshake::new(&key, VERSION, [1; 32], &binding).0.finish(&take(&mut rest), 9).is_err());
}
