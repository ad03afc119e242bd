//! A long plain document with one fact hidden in it.

/// Chooses words: SplitMix64 (Steele et al. 2014), so that the document is the
/// same on every machine.
struct Words(u64);

impl Words {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn pick<'a>(&mut self, words: &[&'a str]) -> &'a str {
        words[(self.next() % words.len() as u64) as usize]
    }

    fn number(&mut self, below: u64) -> u64 {
        self.next() % below
    }
}

const PEOPLE: [&str; 16] = [
    "Marta",
    "the baker",
    "old Henrik",
    "the ferryman",
    "Ines",
    "the schoolteacher",
    "Tomas",
    "the carpenter",
    "a young sailor",
    "the widow Lund",
    "Piotr",
    "the postman",
    "Agnes",
    "the gardener",
    "two cousins",
    "the innkeeper",
];
const ACTIONS: [&str; 16] = [
    "walked down to",
    "carried a basket to",
    "waited for an hour at",
    "spoke with a stranger near",
    "painted a small picture of",
    "repaired the fence behind",
    "slept through the afternoon at",
    "counted the boats from",
    "read an old letter in",
    "planted beans beside",
    "lost a glove in",
    "bought bread near",
    "drew a map of",
    "swept the steps of",
    "told a long story about",
    "took a photograph of",
];
const PLACES: [&str; 16] = [
    "the harbour",
    "the mill",
    "the church square",
    "the north gate",
    "the orchard",
    "the school",
    "the stone bridge",
    "the market hall",
    "the lighthouse",
    "the river meadow",
    "the old quarry",
    "the railway station",
    "the inn",
    "the boathouse",
    "the hill above the town",
    "the library",
];
const TIMES: [&str; 12] = [
    "In the morning",
    "Before noon",
    "On a quiet Sunday",
    "After the rain",
    "Late in the evening",
    "During the first frost",
    "At the end of the week",
    "When the bells rang",
    "In early spring",
    "On market day",
    "Toward sunset",
    "Shortly after breakfast",
];
const ENDINGS: [&str; 16] = [
    "and nobody was in a hurry",
    "while the wind turned to the west",
    "and the tea went cold",
    "because the road was closed",
    "and came home with muddy shoes",
    "although it was getting dark",
    "and a dog followed all the way",
    "while children played nearby",
    "and the price was fair",
    "as had been agreed the week before",
    "and it began to snow",
    "while the kettle sang",
    "and the sky stayed clear",
    "with a lantern in one hand",
    "and forgot the umbrella",
    "until the ferry came back",
];

/// A document and what is to be found in it.
pub struct Document {
    /// The text.
    pub text: String,
    /// The hidden code.
    pub code: String,
}

/// Asked after the document.
pub const QUESTION: &str = "What is the access code of the archive room?";
/// Opening words of the answer.
pub const ANSWER_PREFIX: &str = "The access code of the archive room is";

impl Document {
    /// Writes `n_sentences` sentences with the fact after `depth` percent of
    /// them.
    pub fn new(seed: u64, n_sentences: usize, depth: usize) -> Self {
        let mut words = Words(seed);
        let code = format!("{}", 1000 + words.number(9000));
        let fact_at = n_sentences * depth / 100;
        let mut text = String::new();
        for index in 0..n_sentences {
            if index == fact_at {
                text += &format!("{ANSWER_PREFIX} {code}. ");
            }
            text += &sentence(&mut words);
            text.push(if index % 8 == 7 { '\n' } else { ' ' });
        }
        Document { text, code }
    }
}

fn sentence(words: &mut Words) -> String {
    let (time, person) = (words.pick(&TIMES), words.pick(&PEOPLE));
    let (action, place, ending) = (words.pick(&ACTIONS), words.pick(&PLACES), words.pick(&ENDINGS));
    match words.number(3) {
        0 => format!("{time}, {person} {action} {place}, {ending}."),
        1 => format!("{time} {person} {action} {place}."),
        _ => {
            let mut person = person.to_owned();
            // The lists are ASCII.
            if let Some(first) = person.get_mut(..1) {
                first.make_ascii_uppercase();
            }
            format!("{person} {action} {place} {ending}.")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fact_is_there_once_and_the_text_repeats() {
        let document = Document::new(1, 100, 40);
        assert_eq!(document.text.matches(&document.code).count(), 1);
        assert_eq!(document.text, Document::new(1, 100, 40).text);
        assert_ne!(document.text, Document::new(2, 100, 40).text);
    }
}
