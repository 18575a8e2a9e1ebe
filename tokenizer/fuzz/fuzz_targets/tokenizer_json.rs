//! Any bytes as `tokenizer.json`; the tokenizer must keep its promises.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tokenizer::Tokenizer;

const TEXTS: [&str; 4] = ["", "The water rises, the river widens.\n\n  12 345", "<|bos|>é🌊 \u{0}", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"];

fuzz_target!(|json: &[u8]| {
    let Ok(tokenizer) = Tokenizer::from_json(json) else { return };
    for text in TEXTS {
        let Ok(ids) = tokenizer.encode(text) else { continue };
        assert!(ids.iter().all(|id| *id < tokenizer.vocab_size()));
        if tokenizer.kind() != "BPE" {
            assert!(ids.iter().all(|id| !tokenizer.specials().contains(*id)));
            assert_eq!(tokenizer.decode(&ids).expect("its own ids"), text);
        }
        let mut stream = tokenizer.decode_stream();
        let shown: String = ids.iter().map(|id| stream.push(*id).expect("its own id")).collect();
        let rest = stream.finish().expect("its own ids");
        assert_eq!(shown + &rest, tokenizer.decode(&ids).expect("its own ids"));
    }
});
