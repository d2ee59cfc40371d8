"""Mixed load on real files for hours, with kills and damage, and whether anything grew or went wrong."""
