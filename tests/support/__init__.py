"""What tests share: small problems, hand-driven runs, the methods that laws range over."""
