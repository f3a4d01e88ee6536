"""The harness: every operator's results compared with goldens, in memory and as files."""
