#!/usr/bin/perl
# Mail::DKIM for many messages in one process.
#
#   mail_dkim.pl verify RECORDS                        < messages
#   mail_dkim.pl sign RECORDS DOMAIN SELECTOR KEYFILE  < canonicalization, message, canonicalization, message...
#
# Standard input and output are octet strings, each behind its length (32 bits, network order). `verify` answers each
# message with "SELECTOR=RESULT<tab>..." in order of the signatures, `sign` with the DKIM-Signature field, without the
# final line end. RECORDS has one key record a line: its name, a space, its text.
use strict;
use warnings;
use Mail::DKIM::PrivateKey;
use Mail::DKIM::Signer;
use Mail::DKIM::Verifier;
use Net::DNS::RR;

my ($what, $records, @options) = @ARGV;
binmode $_ for *STDIN, *STDOUT;

my %text;
open my $file, '<', $records or die "$records: $!";
while (<$file>) {
    chomp;
    my ($name, $text) = split / /, $_, 2;
    $text{lc $name} = $text;
}
{
    no warnings 'redefine';
    *Mail::DKIM::DNS::query = sub {
        my $name = lc shift;
        $@ = 'NXDOMAIN';
        return defined $text{$name} ? Net::DNS::RR->new(owner => $name, type => 'TXT', txtdata => [$text{$name}]) : ();
    };
}

if ($what eq 'verify') {
    while (defined(my $message = get())) {
        my $verifier = Mail::DKIM::Verifier->new;
        feed($verifier, $message);
        put(join "\t", map { $_->selector . '=' . $_->result_detail } $verifier->signatures);
    }
}
else {
    my ($domain, $selector, $path) = @options;
    my $key = Mail::DKIM::PrivateKey->load(File => $path);
    while (defined(my $canonicalization = get())) {
        my $signer = Mail::DKIM::Signer->new(
            Algorithm => 'rsa-sha256', Method => $canonicalization,
            Domain => $domain, Selector => $selector, Key => $key);
        feed($signer, get());
        put($signer->signature->as_string);
    }
}

sub feed {
    my ($dkim, $message) = @_;
    $dkim->PRINT($message);
    $dkim->CLOSE;
}

sub get {
    my $got = read STDIN, my $size, 4;
    return unless $got;
    $size = unpack 'N', $size;
    my $octets = '';
    $size == 0 or read(STDIN, $octets, $size) == $size or die 'input ends early';
    return $octets;
}

sub put {
    my $octets = shift;
    print pack('N', length $octets), $octets;
}
