"""Keys made with openssl(1), in the forms that signers want, with the record a verifier finds in the DNS."""
import base64, subprocess


class Key:
    """One key pair: `path` (PEM PKCS#8, mode 0600), `record` (the TXT record's text), and for other signers
    `pkcs1` (PEM octets, RSA; also in the file `pkcs1_path`) or `seed` (32 octets in base64, Ed25519)."""

    def __init__(self, folder, name, algorithm="rsa", bits=2048):
        self.algorithm = algorithm
        self.path = folder / f"{name}.pem"
        options = ["-pkeyopt", f"rsa_keygen_bits:{bits}"] if algorithm == "rsa" else []
        openssl("genpkey", "-quiet", "-algorithm", algorithm, *options, "-out", self.path)
        self.path.chmod(0o600)
        public = openssl("pkey", "-in", self.path, "-pubout", "-outform", "DER")
        if algorithm == "rsa":
            self.pkcs1_path = folder / f"{name}.pkcs1.pem"
            openssl("rsa", "-in", self.path, "-traditional", "-out", self.pkcs1_path)
            self.pkcs1_path.chmod(0o600)
            self.pkcs1 = self.pkcs1_path.read_bytes()
        else:
            # Both encodings end in the 32 octets of the key (RFC 8410, sections 4 and 7).
            self.seed = base64.b64encode(openssl("pkey", "-in", self.path, "-outform", "DER")[-32:])
            public = public[-32:]
        self.record = f"v=DKIM1; k={algorithm}; p={base64.b64encode(public).decode()}"


def openssl(*arguments):
    """The standard output of openssl(1)."""
    done = subprocess.run(["openssl", *map(str, arguments)], capture_output=True)
    if done.returncode:
        raise RuntimeError(f"openssl {arguments[0]}: {done.stderr.decode()}")
    return done.stdout
