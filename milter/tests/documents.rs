//! The manual page and the sample of the configuration file are printed from the table of options; what is committed must
//! be what it prints now. `DKIM_MILTER_WRITE_DOCUMENTS=1 cargo test --test documents` writes them anew.

use dkim_milter::config::{manual_page, sample};
use std::path::Path;

#[test]
fn committed_documents_are_those_of_the_table_of_options() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    for (path, text) in [
        ("docs/dkim-milter.conf.5", manual_page()),
        ("etc/dkim-milter.conf", sample()),
    ] {
        let file = root.join(path);
        if std::env::var_os("DKIM_MILTER_WRITE_DOCUMENTS").is_some() {
            std::fs::write(&file, &text).unwrap();
        }
        let committed = std::fs::read_to_string(&file).unwrap_or_default();
        assert!(
            committed == text,
            "{path} is not what the table of options prints; see the head of this test"
        );
    }
}
