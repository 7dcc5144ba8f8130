"""Words that never tell one server from another, and everyday words that seldom do."""

from __future__ import annotations

__all__ = ["COMMON_WORDS", "STOP_WORDS"]

_FUNCTION_WORDS = """
    about above across after again against ain all almost along already also although always among and another any
    anyone anything are aren around as at away back be became because become been before being below between both
    but by came can cannot come could couldn did didn do does doesn doing don done down during each either else
    enough etc even ever every everything few first following for from further had has hasn have haven having he her
    here him his how however if in instead into is isn it its itself just last later latter least less let like
    likely made many may maybe me mean might mine more most much must my near need never next no non none nor not
    nothing now of off often on once one only onto or other others otherwise our out over own per perhaps please
    quite rather really same second see several shall she should shouldn since so some someone something soon still
    such sure than that the their them then there therefore these they thing third this those though three through
    thus to together too toward two under unless until up upon us very via was wasn way we well were what whatever
    when where whether which while who whole whom whose why will with within without won would wouldn yes yet you
    your
"""

_GENERIC_VERBS = """
    accept access achieve act add adding adjust allow appear append apply ask assign attempt avoid begin bring build
    call cause change changing check choose clear close combine compare complete compute configure consider contain
    containing continue control convert copy correctly create decide define delete depend describe detect determine
    disable display edit enable end ensure ensuring enter execute exist expect extract fail fetch fill filter find
    finish fit follow format generate get give go handle help hold identify implement import include including
    increase indicate initialize insert keep know lead learn leave let limit list load loading look make manage
    match matter modify move obtain occur offer open operate organize overwrite overwriting pass perform place point
    prefer prepare prevent process produce provide put raise reach read receive recommend reduce refer rejected
    remain remove rename renaming replace replacing report represent request require reset resolve respond result
    retrieve return review run save say search select send serve set show skip sort specify split start stop store
    submit succeed succeeded supply support switch take tell think try trying turn update use used useful using
    utilize validate verify view wait want work write
"""

_SCHEMA_TALK = """
    able absolute action actual additional address ago algorithm alternative amount appropriate area arg args
    argument array aspect assistant attribute author automatic automatically available base based basic beginning
    best better big block body bool boolean bottom capability case category center certain changed changes char
    character choice class clean code collection comma common compatible component condition config configuration
    connection consistent content context correct count created critical current currently custom data date day
    default defaults definition deprecated desc description desired detail detailed dict dictionary different direct
    direction directly doc docs document double due easy effective efficient eg element empty entire entry enum
    environment equal error exact exactly example exception exclude existing explicit expression ext extension
    external failed false fast field file filename filepath final fine fixed flag float format found framework free
    frequently friendly full function functionality general generic given global good great greater group guide
    handler hard header help helpful high higher host human idea identifier ids implementation important incl
    inclusive individual info information initial inner input instance int integer interface internal invalid
    investigation issue item json key keyword kind language large larger left length level limited line link local
    location log long longer lot low lower main manual max maximum mcp meaningful member message metadata method min
    minimum minute missing mode model module month multiple name named native necessary negative new note null
    number object offset old operation opt option optional options order original output outside overall overview
    page pair parameter params parent part particular passed path pattern performed permanently permission person
    placeholder plain points position positive possible potential power practice precise preferred presence preserve
    previous primary problem professional program prompt proper properly property protocol provided purpose quality
    quantity question quick random range rate raw ready real reason reasonable recent recommended record reference
    regular related relative relevant remote required resource response resulting returned returns right root round
    rule safe sample scenario schema scope seconds section selected separate sequence server service session setting
    setup shared short showing side similar simple simultaneously single size small smaller software solution source
    special specific specified standard state statement static status step str string strong structure structured
    style subset success successful successfully suitable supported supports syntax system tag target task technique
    temporary term test text time title today tomorrow tool top total trigger true type types typical underlying
    unique unit unknown unlike updated url usage user utf valid value variable various version visible warning week
    wide width window word workflow working workspace world written year yesterday zero
"""

STOP_WORDS = frozenset(f"{_FUNCTION_WORDS} {_GENERIC_VERBS} {_SCHEMA_TALK}".split())
"""Lower-case and singular where that matters; a word that hides behind its plural is tested both ways."""

_EVERYDAY_WORDS = """
    active age agreement air allowed anchor annual answer apart area arm art associated attach average bank bar base
    beautiful bed bell bird blank blue boat bottle box boy bread break bridge bright bring brother brown business
    buy cake calculated call camera capital car card care cat center chair chance changing character cheap child
    children church city class clearly cloth cold color combination comfort communication community company
    competition completely complex concern connect constant contact container containing core correctly cost cotton
    country course cover creative credit cross culture cup curve customer cut cycle dark daughter dead deal dear
    death deep defined degree delay delivery density design detail develop dinner discussion dish distance
    distribution dog door doubt draft draw dream dress drink drive drop dry dust duty ear earth east eat economy
    edge education effect egg elegant embedded employee energy engine english escape evaluate evening event exact
    exchange exercise expand expected expert eye face fall family farm fashion father fear feature feel feeling
    female field fight figure finding fire flat floor flower fly food foot force forced foreign forget forward frame
    friend front fruit future game garden gas girl glass goal gold gone government grain grand grass gray green grey
    ground growth hair hand handling happy hat head health hearing heart heat heavy hide history holiday home hope
    horse hospital hotel hour house hundred idea identity image imagine improve including industry ink insect
    instruction instrument insurance interest interval invention iron island jewel job join joke journey judge jump
    kick kiss kitchen knee knife knot land laugh law leaf leather leg lesson letter library lift light listing live
    loaded lock look loss loud love lunch machine management map mark market mass master matching material meal
    measure meat media medical meeting metal middle milk mind mine minister mirror modern modified money month moon
    morning mother motion mountain mouth move music nail narrow nation natural neck need needle nerve network news
    night noise normal north nose nut occurrence offer office oil opinion opposite orange organization original
    ornament oven owner pack pain paint paper parcel parent party past patient payment peace pen pencil person phone
    physical pig pin pipe plane plant plate play pleasure plough pocket poison polish political poor porter possible
    pot potato powder present press price prime print prison private product profit protest public pull pump
    punishment push rail rain ray reaction reading reduced refuse regardless regret religion respect rest reward
    rhythm rice rich ring river road rod role roof root rough rub rule run sad sail salt sand scale scene school
    science scissors sea seat secret secretary seed seek selection self sense sensitive serious sex shade shake
    shame shape sharp sheep shelf ship shirt shock shoe shop shoulder shown shut sick side sign silk silver sister
    skin skirt sky sleep slip slow smash smell smile smoke smooth snake sneeze snow soap social society sock soft
    son song sort sound soup south space spade spoon spring square stamp star station stay steam steel stem step
    stick sticky stiff stitch stocking stomach stone story strange street stretch strong subject substance sugar
    suggestion summer sun surprise sweet swim tail talk tall taste tax teach team tendency tested theory thick thin
    thread throat thumb thunder ticket tight timeline tin tired toe tongue tooth topic touch town trade train
    transport tray tree trick trouble trousers truth turn twist typed umbrella understand understanding union voice
    walk wall war warm wash waste watch water wave wax weather web week weight west wet wheel whip white wide wild
    wind wine wing winter wire wise woman wood wool worm wound yellow young
"""

COMMON_WORDS = frozenset(_EVERYDAY_WORDS.split())
"""Everyday words that can point to a server, but often do not: they count for less."""
