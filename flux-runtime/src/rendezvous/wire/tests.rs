use super::*;
use proptest::collection::vec;
use proptest::prelude::*;
use std::io::Cursor;

fn framed(body: &[u8]) -> Vec<u8> {
    [&(body.len() as u32).to_le_bytes()[..], body].concat()
}

fn limit() -> impl Strategy<Value = Duration> {
    (any::<u64>(), 0..1_000_000_000_u32).prop_map(|(secs, nanos)| Duration::new(secs, nanos))
}

fn request() -> impl Strategy<Value = Request> {
    prop_oneof![
        Just(Request::Begin),
        Just(Request::Number),
        Just(Request::Close),
        ".{0,40}".prop_map(|reason| Request::Abandon { reason }),
        limit().prop_map(|limit| Request::Recover { limit }),
        (vec(any::<u32>(), 0..70), limit())
            .prop_map(|(members, limit)| Request::Group { members, limit }),
        (any::<u64>(), vec(any::<u8>(), 0..300), limit())
            .prop_map(|(key, payload, limit)| Request::Gather { key, payload, limit }),
    ]
}

fn call() -> impl Strategy<Value = Call> {
    (any::<u64>(), any::<u32>(), request()).prop_map(|(id, place, request)| Call {
        id,
        place,
        request,
    })
}

fn told() -> impl Strategy<Value = Told> {
    let answer =
        prop_oneof![
            Just(Ok(Answer::Done)),
            any::<u64>().prop_map(|number| Ok(Answer::Number(number))),
            vec(vec(any::<u8>(), 0..40), 0..70).prop_map(|all| Ok(Answer::Payloads(all))),
            (vec(any::<u32>(), 0..9), limit()).prop_map(|(missing, waited)| Err(
                Refusal::Missing { missing, elsewhere: vec![], waited }
            )),
            ".{0,40}".prop_map(|reason| Err(Refusal::Other { reason })),
        ];
    prop_oneof![
        (any::<u64>(), answer).prop_map(|(id, answer)| Told::Reply { id, answer }),
        Just(Told::Closing),
        (any::<u32>(), ".{0,40}").prop_map(|(rank, reason)| Told::Lost { rank, reason }),
    ]
}

proptest! {
    #[test]
    fn messages_are_read_as_they_were_written(call in call(), told in told()) {
        let mut bytes = Vec::new();
        send(&mut bytes, &call).unwrap();
        send(&mut bytes, &told).unwrap();
        let mut from = Cursor::new(bytes);
        prop_assert_eq!(receive::<Call>(&mut from, MOST_CALL).unwrap(), call);
        prop_assert_eq!(receive::<Told>(&mut from, MOST_REPLY).unwrap(), told);
    }

    #[test]
    fn any_bytes_are_a_message_or_an_error(bytes in vec(any::<u8>(), 0..400)) {
        let _ = receive::<Call>(&mut Cursor::new(&bytes), MOST_CALL);
        let _ = receive::<Told>(&mut Cursor::new(&bytes), MOST_REPLY);
        let _ = decode::<Call>(&bytes);
        let _ = decode::<Told>(&bytes);
    }

    #[test]
    fn a_message_with_other_bytes_in_it_is_a_message_or_an_error(
        call in call(),
        at in any::<prop::sample::Index>(),
        with in vec(any::<u8>(), 1..9),
    ) {
        let mut body = postcard::to_stdvec(&call).unwrap();
        let at = at.index(body.len());
        let end = (at + with.len()).min(body.len());
        body.splice(at..end, with);
        if let Ok(read) = decode::<Call>(&body) {
            // What is understood is what those bytes say, not more of them.
            prop_assert!(postcard::to_stdvec(&read).unwrap().len() <= body.len());
        }
    }

    #[test]
    fn a_cut_message_is_an_error(call in call(), cut in any::<prop::sample::Index>()) {
        let mut bytes = Vec::new();
        send(&mut bytes, &call).unwrap();
        bytes.truncate(cut.index(bytes.len()));
        prop_assert!(receive::<Call>(&mut Cursor::new(bytes), MOST_CALL).is_err());
    }

    #[test]
    fn greetings_are_read_as_they_were_written(
        version in any::<u32>(), rank in any::<u32>(), world in any::<u32>(), nonce in any::<Nonce>(),
        other in any::<[u8; 4]>(),
    ) {
        let greeting = Greeting { version, rank, world, nonce };
        let mut bytes = greeting.encode();
        prop_assert_eq!(Greeting::decode(&bytes), Some(greeting));
        bytes[..4].copy_from_slice(&other);
        prop_assert_eq!(Greeting::decode(&bytes).is_some(), other == MAGIC);
    }
}

#[test]
fn a_length_is_not_believed() {
    // Longer than allowed: refused before anything is read.
    let error = receive::<Call>(&mut Cursor::new([0xff; 4]), MOST_CALL).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidData);
    // As long as is allowed, but not there.
    let claimed = (MOST_CALL as u32).to_le_bytes();
    let error = receive::<Call>(&mut Cursor::new(claimed), MOST_CALL).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::UnexpectedEof);
}

#[test]
fn a_vector_that_claims_to_be_long_takes_no_memory() {
    // Answer::Payloads with 2^60 payloads, of which none comes.
    let mut body = vec![0, 1, 0, 1];
    body.extend([0xff; 8]);
    body.push(0x0f);
    assert!(decode::<Told>(&body).is_err());
    assert!(receive::<Told>(&mut Cursor::new(framed(&body)), MOST_REPLY).is_err());
}

#[test]
fn bytes_behind_a_message_are_an_error() {
    let mut body =
        postcard::to_stdvec(&Call { id: 1, place: 0, request: Request::Number }).unwrap();
    assert!(decode::<Call>(&body).is_ok());
    body.push(0);
    assert!(decode::<Call>(&body).is_err());
}

#[test]
fn long_text_is_cut_at_a_character() {
    assert_eq!(text("short".into()), "short");
    let long = text("é".repeat(MOST_TEXT));
    assert!(long.len() <= MOST_TEXT && long.chars().all(|c| c == 'é'));
}

#[test]
fn errors_of_meetings_travel_whole() {
    let waited = Duration::from_millis(300);
    let errors = [
        Error::RankMissing { missing: vec![1], elsewhere: vec![2], waited },
        Error::RankLate { rank: 3, waited },
        Error::RankAbandoned { rank: 1, reason: "done".into() },
        Error::RankRecovers { rank: 1 },
        Error::RankTwice { rank: 1 },
        Error::NoSuchRank { rank: 9, world: 2 },
        Error::NotInGroup { rank: 1, members: vec![0] },
        Error::TwiceInGroup { rank: 1, members: vec![1, 1] },
        Error::GroupsDiffer { rank: 0, ours: vec![0, 1], other: 1, theirs: vec![1, 0] },
        Error::TooManyMeetings { most: 4 },
    ];
    for error in errors {
        assert_eq!(Error::from(Refusal::from(error.clone())), error);
    }
}
