// Gives the clients of a listener without TLS and SASL the principal User:admin instead of User:ANONYMOUS.

import org.apache.kafka.common.security.auth.AuthenticationContext;
import org.apache.kafka.common.security.auth.KafkaPrincipal;
import org.apache.kafka.common.security.authenticator.DefaultKafkaPrincipalBuilder;

public class PlaintextAdmin extends DefaultKafkaPrincipalBuilder {
    public PlaintextAdmin() {
        super(null, null); // the rules for names of Kerberos and of certificates, which these clients do not have
    }

    @Override
    public KafkaPrincipal build(AuthenticationContext context) {
        return new KafkaPrincipal(KafkaPrincipal.USER_TYPE, "admin");
    }
}
