#!/usr/bin/perl
# Mail::DKIM as a harness: benches/src/peer_protocol.rs says what it is told and what it answers.
#
# The private key is parsed once, as Mail::DKIM lets one; the key record comes from memory, as the resource record that
# a resolver would give, and is parsed for each message. Debian 12's version has no Ed25519.
use strict;
use warnings;
use Mail::DKIM;
use Mail::DKIM::PrivateKey;
use Mail::DKIM::Signer;
use Mail::DKIM::Verifier;
use Net::DNS::RR;
use Time::HiRes 'clock_gettime';

# Of this process, which has one thread.
use constant CLOCK => Time::HiRes::CLOCK_PROCESS_CPUTIME_ID();

my ($algorithm, $domain, $selector, $canonicalization, $key, $record, $message);
my $made = '';

{
    no warnings 'redefine';
    *Mail::DKIM::DNS::query = sub {
        $@ = 'NXDOMAIN';
        return lc shift eq "$selector._domainkey.$domain" ? $record : ();
    };
}

binmode $_ for *STDIN, *STDOUT;
$| = 1;
answer("ready Mail::DKIM $Mail::DKIM::VERSION, key parsed once, record per message");
while (defined(my $line = <STDIN>)) {
    my ($command, @words) = split ' ', $line;
    eval { obey($command, @words); 1 } or answer($@ =~ /^unsupported / ? $@ : "error $@");
}

sub obey {
    my ($command, @words) = @_;
    if ($command eq 'load') {
        my @parts = map { get($_) } @words[5 .. 7];
        load(@words[0 .. 4], @parts);
        answer('loaded');
    }
    elsif (!defined $message)        { die "nothing is loaded\n" }
    elsif ($command eq 'sign')       { answer('signed ' . timed(\&make, @words)) }
    elsif ($command eq 'verify')     { answer('verified ' . timed(\&verify_to_pass, @words)) }
    elsif ($command eq 'verdict')    { my $why = verify(); answer(defined $why ? "fail $why" : 'pass') }
    elsif ($command eq 'signature')  { answer('signature ' . length $made); print $made }
    else                             { die "unsupported no such command: $command\n" }
}

# The fields to sign are those that Mail::DKIM signs anyhow.
sub load {
    my ($pem, $text);
    undef $message;
    ($algorithm, $domain, $selector, $canonicalization, undef, $pem, $text, my $octets) = @_;
    die "unsupported no such algorithm: $algorithm\n" if $algorithm ne 'rsa-sha256';
    my $data = join '', grep { !/^---/ } split /\n/, $pem;
    $key = Mail::DKIM::PrivateKey->load(Data => $data);
    $record = Net::DNS::RR->new(owner => "$selector._domainkey.$domain", type => 'TXT', txtdata => [$text]);
    $message = $octets;
}

sub make {
    my $signer = Mail::DKIM::Signer->new(
        Algorithm => $algorithm, Method => $canonicalization,
        Domain => $domain, Selector => $selector, Key => $key);
    $signer->PRINT($message);
    $signer->CLOSE;
    $made = $signer->signature->as_string;
}

# Nothing if the message passes, or why it does not.
sub verify {
    my $verifier = Mail::DKIM::Verifier->new;
    $verifier->PRINT($message);
    $verifier->CLOSE;
    return if $verifier->result eq 'pass';
    return $verifier->result_detail if $verifier->result eq 'fail';
    die $verifier->result_detail . "\n";
}

sub verify_to_pass {
    my $why = verify();
    die "did not pass: $why\n" if defined $why;
}

sub timed {
    my ($go, $goes) = @_;
    my $start = clock_gettime(CLOCK);
    $go->() for 1 .. $goes;
    return sprintf '%.0f', (clock_gettime(CLOCK) - $start) * 1e9;
}

sub get {
    my $size = shift;
    my $octets = '';
    $size == 0 or read(STDIN, $octets, $size) == $size or die 'input ends early';
    return $octets;
}

sub answer {
    print join(' ', split ' ', shift), "\n";
}
