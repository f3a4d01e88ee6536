from anyfuse_cli import main

main()
