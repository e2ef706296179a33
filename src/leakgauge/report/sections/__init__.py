"""The sections of the report, one file per question and one for its top: what a template shows, made from records and findings."""
