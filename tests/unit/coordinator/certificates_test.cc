// SPDX-License-Identifier: Apache-2.0
// Certificates, tokens, and the files of `coordinator init`.
#include "coordinator/client/certificates.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>
#include <string>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "coordinator/client/private_file.h"
#include "coordinator/client/token.h"
#include "coordinator/core/tokens.h"
#include "coordinator/service/cluster_files.h"
#include "coordinator/service/token_issuer.h"

namespace lockstep::coordinator {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

const absl::Time kNow = absl::FromUnixSeconds(1'800'000'000);

TEST(CertificatesTest, AnAuthorityIssuesWhatBearsItsNames) {
  const auto authority = MakeAuthority(kNow);
  ASSERT_TRUE(authority.ok()) << authority.status();
  const auto server =
      IssueServer(*authority, {"10.0.0.1", "fd00::1", "head.example.org"}, kNow, kServerValidity);
  ASSERT_TRUE(server.ok()) << server.status();
  const auto facts = ReadCertificate(server->certificate);
  ASSERT_TRUE(facts.ok()) << facts.status();
  EXPECT_THAT(facts->names, ElementsAre("10.0.0.1", "fd00::1", "head.example.org"));
  EXPECT_EQ(facts->ends, kNow + absl::Hours(24 * 365));
  EXPECT_EQ(facts->begins, kNow - absl::Hours(24));
  EXPECT_TRUE(CheckIssued(server->certificate, authority->certificate).ok());
  const auto other = MakeAuthority(kNow);
  EXPECT_EQ(CheckIssued(server->certificate, other->certificate).code(),
            absl::StatusCode::kFailedPrecondition);
}

TEST(CertificatesTest, NamesAreNames) {
  const auto authority = MakeAuthority(kNow);
  for (const std::string name : {"", "a b", "a,DNS:b", "a\n", "*", "a/b"}) {
    EXPECT_EQ(IssueServer(*authority, {name}, kNow, kServerValidity).status().code(),
              absl::StatusCode::kInvalidArgument)
        << name;
  }
  EXPECT_FALSE(IssueServer(*authority, {std::string(254, 'a')}, kNow, kServerValidity).ok());
}

TEST(CertificatesTest, DamageIsNoticed) {
  const auto authority = MakeAuthority(kNow);
  const auto der = DerOf(authority->certificate);
  ASSERT_TRUE(der.ok());
  EXPECT_EQ(*PemOf(*der), authority->certificate);
  for (const std::string& damaged : {der->substr(1), der->substr(0, der->size() - 1), *der + "x"}) {
    EXPECT_EQ(PemOf(damaged).status().code(), absl::StatusCode::kDataLoss);
  }
  EXPECT_FALSE(ReadCertificate("").ok());
  EXPECT_FALSE(ReadCertified(authority->certificate).ok()) << "no key";
  const auto other = MakeAuthority(kNow);
  EXPECT_EQ(ReadCertified(authority->certificate + other->key).status().code(),
            absl::StatusCode::kFailedPrecondition);
}

TEST(CertificatesTest, CallersGetTheirOwnWhichAreNoServers) {
  const auto authority = MakeAuthority(kNow, "callers");
  const auto client =
      IssueClient(*authority, NameOfToken("secret"), kNow, kNow + absl::Hours(24 * 90));
  ASSERT_TRUE(client.ok()) << client.status();
  const auto facts = ReadCertificate(client->certificate);
  ASSERT_TRUE(facts.ok());
  EXPECT_EQ(facts->name, NameOfToken("secret"));
  EXPECT_EQ(facts->name.size(), 64u);
  EXPECT_EQ(facts->ends, kNow + absl::Hours(24 * 90));
  EXPECT_TRUE(CheckIssued(client->certificate, authority->certificate).ok());
  const auto endless = IssueClient(*authority, "x", absl::InfinitePast(), absl::InfiniteFuture());
  EXPECT_EQ(ReadCertificate(endless->certificate)->ends,
            ReadCertificate(authority->certificate)->ends);
  EXPECT_FALSE(IssueClient(*authority, std::string(65, 'x'), kNow, kNow).ok());
}

TEST(CertificatesTest, SeveralAuthoritiesAreOneText) {
  const auto one = MakeAuthority(kNow), other = MakeAuthority(kNow), third = MakeAuthority(kNow);
  const std::string both = one->certificate + other->certificate;
  EXPECT_THAT(*CertificatesIn(one->key + both), ElementsAre(one->certificate, other->certificate));
  EXPECT_EQ(*PemOf(*DerOf(both)), both);
  const auto server = IssueServer(*other, {"x"}, kNow, kServerValidity);
  EXPECT_TRUE(CheckIssued(server->certificate, both).ok());
  EXPECT_FALSE(CheckIssued(server->certificate, one->certificate + third->certificate).ok());
  EXPECT_FALSE(CertificatesIn("").ok());
  EXPECT_FALSE(CertificatesIn(one->certificate + other->certificate.substr(0, 100)).ok());
}

TEST(CertificatesTest, ACertificateAndItsKeyBelongTogether) {
  const auto one = MakeAuthority(kNow), other = MakeAuthority(kNow);
  const auto der = DerOfCertified(*one);
  ASSERT_TRUE(der.ok()) << der.status();
  EXPECT_EQ(CertifiedOf(*der)->certificate, one->certificate);
  for (const std::string& damaged :
       {*der + "x", der->substr(0, der->size() - 1), *DerOf(one->certificate), std::string(),
        *DerOfCertified({one->certificate, other->key})}) {
    EXPECT_EQ(CertifiedOf(damaged).status().code(), absl::StatusCode::kDataLoss);
  }
}

TEST(TokenTest, CarriesACertificateThatOpensTheHandshake) {
  const auto authority = MakeAuthority(kNow), next = MakeAuthority(kNow);
  const auto client = IssueClient(*authority, "x", kNow, kNow + absl::Hours(1));
  for (const std::string secret : {"secret", "worker.j.0.1.c0ffee"}) {
    const auto text = TokenOf({secret, authority->certificate + next->certificate, *client});
    ASSERT_TRUE(text.ok()) << text.status();
    EXPECT_LT(text->size(), 4096u);
    EXPECT_EQ(*CheckToken(*text, "x"), *text);
    const auto token = ParseToken(*text);
    ASSERT_TRUE(token.ok()) << token.status();
    EXPECT_EQ(token->secret, secret);
    EXPECT_EQ(token->authority, authority->certificate + next->certificate);
    EXPECT_EQ(token->client.certificate, client->certificate);
    EXPECT_EQ(*TokenOf(*token), *text);
    EXPECT_EQ(PlacesOf(*text).secret, secret);
    EXPECT_EQ(WithSecret(*text, "a.b.c"), *TokenOf({"a.b.c", token->authority, token->client}));
    EXPECT_FALSE(ParseToken(text->substr(0, text->size() - 4)).ok());
    EXPECT_FALSE(ParseToken(text->substr(0, text->rfind('.'))).ok());
  }
}

TEST(TokenTest, ItsNameIsTheHashThatTheCoordinatorKeeps) {
  EXPECT_EQ(absl::HexStringToBytes(NameOfToken("secret")), TokenHash("secret"));
}

TEST(TokenTest, CarriesTheAuthorityAndShowsOnlyTheSecret) {
  const auto authority = MakeAuthority(kNow);
  const auto text = TokenOf({"secret", authority->certificate});
  ASSERT_TRUE(text.ok()) << text.status();
  const auto token = ParseToken(*text);
  ASSERT_TRUE(token.ok()) << token.status();
  EXPECT_EQ(token->secret, "secret");
  EXPECT_EQ(token->authority, authority->certificate);
  EXPECT_EQ(*CheckToken(*text + "\n", "x"), *text);
  EXPECT_EQ(text->find("KEY"), std::string::npos);
  // What lacks a part is not taken for a token without one.
  for (const std::string& damaged :
       {text->substr(0, text->size() - 8), std::string("lockstep1."), std::string("lockstep1.a"),
        std::string("lockstep1.a.b"), std::string("lockstep1..") + text->substr(18)}) {
    const auto refused = ParseToken(damaged);
    EXPECT_EQ(refused.status().code(), absl::StatusCode::kFailedPrecondition) << damaged;
    EXPECT_THAT(std::string(CheckToken(damaged, "FILE").status().message()), HasSubstr("FILE"));
  }
  // The secret of a worker's life has dots.
  const auto worker = ParseToken(*TokenOf({"worker.j.0.1.c0ffee", authority->certificate}));
  ASSERT_TRUE(worker.ok()) << worker.status();
  EXPECT_EQ(worker->secret, "worker.j.0.1.c0ffee");
  EXPECT_EQ(worker->authority, authority->certificate);
  EXPECT_EQ(WithSecret(*text, "worker.j.0.1.c0ffee"), *TokenOf(*worker));
  EXPECT_EQ(PlacesOf(*TokenOf(*worker)).secret, worker->secret);
  EXPECT_EQ(ParseToken("anything.else")->secret, "anything.else");
  EXPECT_EQ(PlacesOf("anything.else").secret, "anything.else");
  EXPECT_EQ(WithSecret("anything.else", "a.b"), "a.b");
  EXPECT_EQ(ParseToken("anything.else")->authority, "");
}

TEST(TokenTest, IsOneLineOfPlainSigns) {
  EXPECT_EQ(*CheckToken("  abc-1= ", "x"), "abc-1=");
  EXPECT_EQ(*CheckToken("", "x"), "");
  for (const std::string& wrong :
       {std::string("a b"), std::string("a\x1b[1m"), std::string("a\nb"), std::string(4097, 'a')}) {
    EXPECT_EQ(CheckToken(wrong, "x").status().code(), absl::StatusCode::kFailedPrecondition);
  }
}

TEST(TokenTest, WhoSharesASecretDerivesTheSameAuthority) {
  const std::string shared(32, 's');
  const auto one = CredentialsOfRun(shared), same = CredentialsOfRun(shared);
  ASSERT_TRUE(one.ok()) << one.status();
  EXPECT_EQ(ParseToken(one->token)->secret, ParseToken(same->token)->secret);
  EXPECT_EQ(ParseToken(one->token)->authority, ParseToken(same->token)->authority);
  EXPECT_TRUE(
      CheckIssued(ParseToken(one->token)->client.certificate, same->authority.certificate).ok());
  EXPECT_THAT(one->token, Not(HasSubstr(shared)));
  const auto other = CredentialsOfRun(shared + "s");
  EXPECT_NE(ParseToken(one->token)->secret, ParseToken(other->token)->secret);
  const auto server = IssueServer(one->authority, {"10.0.0.1"}, kNow, kServerValidity);
  ASSERT_TRUE(server.ok()) << server.status();
  EXPECT_TRUE(CheckIssued(server->certificate, ParseToken(same->token)->authority).ok());
  EXPECT_FALSE(CheckIssued(server->certificate, ParseToken(other->token)->authority).ok());
  EXPECT_EQ(CredentialsOfRun("short").status().code(), absl::StatusCode::kFailedPrecondition);
}

// While it lives no file of this process grows beyond `most` bytes.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t most) {
    signal_ = ::signal(SIGXFSZ, SIG_IGN);
    ::getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit low = {most, before_.rlim_max};
    ::setrlimit(RLIMIT_FSIZE, &low);
  }
  ~FileSizeLimit() {
    ::setrlimit(RLIMIT_FSIZE, &before_);
    ::signal(SIGXFSZ, signal_);
  }
  FileSizeLimit(const FileSizeLimit&) = delete;
  FileSizeLimit& operator=(const FileSizeLimit&) = delete;

 private:
  rlimit before_ = {};
  void (*signal_)(int) = nullptr;
};

class ClusterFilesTest : public ::testing::Test {
 protected:
  ClusterFilesTest() {
    std::string folder = ::testing::TempDir() + "clusterXXXXXX";
    folder_ = absl::StrCat(mkdtemp(folder.data()), "/state");
  }
  ~ClusterFilesTest() override {
    std::filesystem::remove_all(std::filesystem::path(folder_).parent_path());
  }
  std::string Text(const std::string& name) const {
    std::ostringstream text;
    text << std::ifstream(folder_ + "/" + name).rdbuf();
    return text.str();
  }
  // By name.
  std::map<std::string, std::string> Files() const {
    std::map<std::string, std::string> files;
    for (const auto& file : std::filesystem::directory_iterator(folder_)) {
      const std::string name = file.path().filename();
      files[name] = Text(name);
    }
    return files;
  }
  std::vector<std::string> Names() const {
    return ReadCertificate((*ReadServerCertificate(folder_))->certificate)->names;
  }
  std::string folder_;
};

TEST_F(ClusterFilesTest, MakesAClusterWhoseFilesAreItsOwnersAlone) {
  EXPECT_FALSE((*ReadServerCertificate(folder_)).has_value());
  const mode_t mask = umask(0);
  const auto made = InitCluster(folder_, {.hosts = {"10.0.0.1"}}, kNow);
  umask(mask);
  ASSERT_TRUE(made.ok()) << made.status();
  EXPECT_TRUE(made->new_cluster);
  for (const auto& file : std::filesystem::directory_iterator(folder_)) {
    struct stat status;
    ASSERT_EQ(stat(file.path().c_str(), &status), 0);
    EXPECT_EQ(status.st_mode & 0777, 0600u) << file.path();
  }
  struct stat status;
  ASSERT_EQ(stat(folder_.c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0700u);
  EXPECT_THAT(Names(), ElementsAre("10.0.0.1", "localhost", "127.0.0.1", "::1"));
  const auto token = ParseToken(*ReadToken(made->token_file));
  EXPECT_EQ(token->secret.size(), 64u);
  EXPECT_TRUE(CheckIssued((*ReadServerCertificate(folder_))->certificate, token->authority).ok());
}

TEST_F(ClusterFilesTest, AgainItRenewsTheCertificateAlone) {
  ASSERT_TRUE(InitCluster(folder_, {.hosts = {"head"}}, kNow).ok());
  const std::string token = Text("token"), authority = Text("authority.pem");
  const std::string server = Text("server.pem");
  const auto again = InitCluster(folder_, {}, kNow + absl::Hours(24 * 300));
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_FALSE(again->new_cluster);
  EXPECT_EQ(again->ends, kNow + absl::Hours(24 * 665));
  EXPECT_EQ(Text("token"), token);
  EXPECT_EQ(Text("authority.pem"), authority);
  EXPECT_NE(Text("server.pem"), server);
  EXPECT_THAT(Names(), Contains("head")) << "it keeps its names";
  ASSERT_TRUE(InitCluster(folder_, {.hosts = {"other"}}, kNow).ok());
  EXPECT_THAT(Names(), ElementsAre("other", "localhost", "127.0.0.1", "::1"));
}

// A step of a rotation that the disk has no room for leaves the former files, and can be taken
// again.
TEST_F(ClusterFilesTest, AFullDiskLeavesNoRotationHalfDone) {
  ASSERT_TRUE(InitCluster(folder_, {.hosts = {"head"}}, kNow).ok());
  for (const auto rotation : {InitOptions::Rotation::kBegin, InitOptions::Rotation::kFinish}) {
    const std::map<std::string, std::string> before = Files();
    size_t fails = 0;
    // No file may be larger, so that one after the other is the first that does not fit.
    for (rlim_t most = 0;; most += 100) {
      absl::StatusOr<InitResult> made;
      {
        const FileSizeLimit limit(most);
        made = InitCluster(folder_, {.rotation = rotation}, kNow);
      }
      if (made.ok()) break;
      ++fails;
      ASSERT_EQ(Files(), before) << most << ": " << made.status();
      EXPECT_THAT(made.status().message(), HasSubstr("stay as they were"));
    }
    EXPECT_GT(fails, 10u);
    EXPECT_NE(Files(), before);
  }
  const auto callers = ReadCallers(folder_);
  EXPECT_EQ((*callers)->all, (*callers)->newest.certificate);
  const auto token = ParseToken(*ReadToken(folder_ + "/token"));
  EXPECT_TRUE(CheckIssued((*ReadServerCertificate(folder_))->certificate, token->authority).ok());
  EXPECT_TRUE(CheckIssued(token->client.certificate, (*callers)->newest.certificate).ok());
}

TEST_F(ClusterFilesTest, ATokenThatWasThereKeepsItsSecret) {
  std::filesystem::create_directory(folder_);
  ASSERT_TRUE(WritePrivateFile(folder_ + "/token", "token file", "before\n", false).ok());
  ASSERT_TRUE(InitCluster(folder_, {}, kNow).ok());
  EXPECT_EQ(ParseToken(*ReadToken(folder_ + "/token"))->secret, "before");
}

TEST_F(ClusterFilesTest, ANewTokenAfterTheOldOneWasRemoved) {
  ASSERT_TRUE(InitCluster(folder_, {}, kNow).ok());
  const auto before = ParseToken(*ReadToken(folder_ + "/token"));
  std::filesystem::remove(folder_ + "/token");
  ASSERT_TRUE(InitCluster(folder_, {}, kNow).ok());
  const auto after = ParseToken(*ReadToken(folder_ + "/token"));
  EXPECT_NE(after->secret, before->secret);
  EXPECT_EQ(after->authority, before->authority);
}

TEST_F(ClusterFilesTest, AnotherTokenStandsAboveTheOldOne) {
  ASSERT_TRUE(InitCluster(folder_, {}, kNow).ok());
  const std::string before = *ReadToken(folder_ + "/token");
  ASSERT_TRUE(InitCluster(folder_, {.new_token = true}, kNow).ok());
  const auto tokens = ReadTokens(folder_ + "/token");
  ASSERT_TRUE(tokens.ok()) << tokens.status();
  ASSERT_EQ(tokens->size(), 2u);
  EXPECT_EQ((*tokens)[1], before);
  EXPECT_NE(ParseToken((*tokens)[0])->secret, ParseToken(before)->secret);
  EXPECT_EQ(ParseToken((*tokens)[0])->authority, ParseToken(before)->authority);
  ASSERT_TRUE(InitCluster(folder_, {}, kNow).ok());
  EXPECT_EQ(*ReadTokens(folder_ + "/token"), *tokens);
}

TEST_F(ClusterFilesTest, AFormerVersionsFolderGetsAnAuthorityOfCallers) {
  ASSERT_TRUE(InitCluster(folder_, {}, kNow).ok());
  const auto token = ParseToken(*ReadToken(folder_ + "/token"));
  std::filesystem::remove(folder_ + "/callers.pem");
  ASSERT_TRUE(WritePrivateFile(folder_ + "/token", "token file",
                               *TokenOf({token->secret, token->authority}), true)
                  .ok());
  EXPECT_FALSE((*ReadCallers(folder_)).has_value());
  const auto again = InitCluster(folder_, {}, kNow);
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_TRUE(again->new_callers);
  EXPECT_FALSE(again->new_cluster);
  const auto after = ParseToken(*ReadToken(folder_ + "/token"));
  EXPECT_EQ(after->secret, token->secret);
  EXPECT_EQ(after->authority, token->authority);
  EXPECT_TRUE(
      CheckIssued(after->client.certificate, (*ReadCallers(folder_))->newest.certificate).ok());
}

TEST_F(ClusterFilesTest, AuthoritiesAreReplacedInTwoSteps) {
  using Rotation = InitOptions::Rotation;
  ASSERT_TRUE(InitCluster(folder_, {}, kNow).ok());
  EXPECT_FALSE(InitCluster(folder_, {.rotation = Rotation::kFinish}, kNow).ok());
  const auto before = ParseToken(*ReadToken(folder_ + "/token"));
  const std::string callers = (*ReadCallers(folder_))->all;
  const auto begun = InitCluster(folder_, {.rotation = Rotation::kBegin}, kNow);
  ASSERT_TRUE(begun.ok()) << begun.status();
  EXPECT_TRUE(begun->rotating);
  EXPECT_FALSE(InitCluster(folder_, {.rotation = Rotation::kBegin}, kNow).ok()) << "twice";
  // Who has the former token trusts what is served, and is trusted.
  const auto during = ParseToken(*ReadToken(folder_ + "/token"));
  EXPECT_EQ(during->secret, before->secret);
  EXPECT_EQ(CertificatesIn(during->authority)->size(), 2u);
  const auto served = [this] { return (*ReadServerCertificate(folder_))->certificate; };
  EXPECT_TRUE(CheckIssued(served(), before->authority).ok());
  EXPECT_TRUE(CheckIssued(before->client.certificate, (*ReadCallers(folder_))->all).ok());
  EXPECT_FALSE(CheckIssued(during->client.certificate, callers).ok()) << "of the new one";
  ASSERT_TRUE(InitCluster(folder_, {}, kNow).ok()) << "a renewal meanwhile";
  EXPECT_TRUE(CheckIssued(served(), before->authority).ok());
  EXPECT_EQ(*ReadToken(folder_ + "/token"), *TokenOf(*during));
  const auto finished = InitCluster(folder_, {.rotation = Rotation::kFinish}, kNow);
  ASSERT_TRUE(finished.ok()) << finished.status();
  EXPECT_FALSE(finished->rotating);
  EXPECT_TRUE(CheckIssued(served(), during->authority).ok());
  EXPECT_FALSE(CheckIssued(served(), before->authority).ok());
  EXPECT_TRUE(CheckIssued(during->client.certificate, (*ReadCallers(folder_))->all).ok());
  EXPECT_FALSE(CheckIssued(before->client.certificate, (*ReadCallers(folder_))->all).ok());
  const auto after = ParseToken(*ReadToken(folder_ + "/token"));
  EXPECT_EQ(CertificatesIn(after->authority)->size(), 1u);
  EXPECT_TRUE(CheckIssued(served(), after->authority).ok());
  EXPECT_FALSE(std::filesystem::exists(folder_ + "/next-authority.pem"));
}

TEST_F(ClusterFilesTest, ANewClusterDoesNotGoOnWithTheRotationOfTheOneBefore) {
  using Rotation = InitOptions::Rotation;
  ASSERT_TRUE(InitCluster(folder_, {.hosts = {"10.0.0.1"}}, kNow).ok());
  ASSERT_TRUE(InitCluster(folder_, {.rotation = Rotation::kBegin}, kNow).ok());
  ASSERT_TRUE(std::filesystem::exists(folder_ + "/next-authority.pem"));
  for (const char* lost : {"authority.pem", "callers.pem", "server.pem", "token"}) {
    std::filesystem::remove(absl::StrCat(folder_, "/", lost));
  }
  const auto made = InitCluster(folder_, {.hosts = {"10.0.0.1"}}, kNow);
  ASSERT_TRUE(made.ok()) << made.status();
  EXPECT_TRUE(made->new_cluster);
  EXPECT_FALSE(made->rotating);
  EXPECT_FALSE(std::filesystem::exists(folder_ + "/next-authority.pem"));
  EXPECT_EQ(CertificatesIn(ParseToken(*ReadToken(folder_ + "/token"))->authority)->size(), 1u);
  EXPECT_FALSE(InitCluster(folder_, {.rotation = Rotation::kFinish}, kNow).ok());
  EXPECT_TRUE(InitCluster(folder_, {.rotation = Rotation::kBegin}, kNow).ok());
}

TEST_F(ClusterFilesTest, AHostIsNamedWithoutItsPort) {
  for (const char* host : {"10.0.0.1:7070", "head:7070", "[::1]:7070", ":"}) {
    const absl::Status status = InitCluster(folder_, {.hosts = {host}}, kNow).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << host;
    EXPECT_THAT(std::string(status.message()), HasSubstr("without the port")) << host;
  }
  EXPECT_TRUE(InitCluster(folder_, {.hosts = {"fd00::7"}}, kNow).ok());
}

TEST_F(ClusterFilesTest, ATokenIsMadeWithWhatTheFolderHasNow) {
  ASSERT_TRUE(InitCluster(folder_, {}, kNow).ok());
  const TokenIssuer issuer(folder_, folder_ + "/token");
  const absl::Time ends = kNow + absl::Hours(24 * 90);
  const auto made = issuer.TokenFor("s", NameOfToken("s"), ends, kNow);
  ASSERT_TRUE(made.ok()) << made.status();
  const auto token = ParseToken(*made);
  EXPECT_EQ(ReadCertificate(token->client.certificate)->ends, ends);
  const std::string hash = *HashOfAuthorities(token->authority);
  const auto current = [&](absl::Time now) {
    return *issuer.IsCurrent(token->client.certificate, hash, ends, now);
  };
  EXPECT_TRUE(current(kNow));
  EXPECT_TRUE(current(ends - absl::Hours(1))) << "another one would end with the token, too";
  EXPECT_FALSE(*issuer.IsCurrent("", hash, ends, kNow)) << "of an earlier version";
  ASSERT_TRUE(InitCluster(folder_, {.rotation = InitOptions::Rotation::kBegin}, kNow).ok());
  EXPECT_FALSE(current(kNow));
  std::filesystem::remove(folder_ + "/callers.pem");
  EXPECT_EQ(issuer.TokenFor("s", "s", ends, kNow).status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(*TokenIssuer().TokenFor("s", "s", ends, kNow), "s");
}

TEST_F(ClusterFilesTest, AClusterIsNotReplacedByAccident) {
  ASSERT_TRUE(InitCluster(folder_, {}, kNow).ok());
  std::filesystem::remove(folder_ + "/authority.pem");
  const auto refused = InitCluster(folder_, {}, kNow);
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(refused.status().message()), HasSubstr("put it back"));
  chmod((folder_ + "/server.pem").c_str(), 0644);
  EXPECT_THAT(std::string(ReadServerCertificate(folder_).status().message()),
              HasSubstr("others can read"));
}

TEST(ExpiryTest, OfATokenIsSaidInTheLastThirdOfItsLife) {
  const CertificateFacts year = {.begins = kNow, .ends = kNow + absl::Hours(24 * 365)};
  EXPECT_EQ(AdmissionWarning(year, year.ends - absl::Hours(24 * 31)), "");
  EXPECT_THAT(AdmissionWarning(year, year.ends - absl::Hours(24 * 29)), HasSubstr("expires on"));
  EXPECT_THAT(AdmissionWarning(year, year.ends), HasSubstr("expired on"));
  const CertificateFacts week = {.begins = kNow, .ends = kNow + absl::Hours(24 * 7)};
  EXPECT_EQ(AdmissionWarning(week, kNow + absl::Hours(24 * 4)), "");
  EXPECT_THAT(AdmissionWarning(week, kNow + absl::Hours(24 * 5)), HasSubstr("token create"));
}

TEST(ExpiryTest, IsSaidAMonthBefore) {
  EXPECT_EQ(ExpiryWarning(kNow + absl::Hours(24 * 31), kNow), "");
  EXPECT_THAT(ExpiryWarning(kNow + absl::Hours(24 * 12 + 1), kNow), HasSubstr("in 12 days"));
  EXPECT_THAT(ExpiryWarning(kNow - absl::Seconds(1), kNow), HasSubstr("expired on 2027-01-15"));
}

}  // namespace
}  // namespace lockstep::coordinator
